// SPDX-License-Identifier: Apache-2.0
#include "cuda/cublas/column_gemms.h"

#include "cuda/common/status.h"
#include "cuda/reductions/sum_samples.h"

namespace jax_convbatch {

template <typename Status>
ffi::Error ColumnGemms::Check(Status status) const {
  return ToError(status,
                 [&] { return Describe(Name(products_.operation), g_); });
}

ffi::Error ColumnGemms::FindAlgorithm() {
  return Check(FindConvAlgorithm(products_, g_, &algorithm_));
}

ffi::Error ColumnGemms::Run(cudaStream_t stream, int64_t samples, const void* a,
                            const void* b, void* d) const {
  return Check(
      RunGemm(stream, algorithm_, ConvGemm(products_, g_, samples), a, b, d));
}

ffi::Error ColumnGemms::Wgrad(cudaStream_t stream, int64_t first,
                              int64_t samples, ffi::DataType dtype,
                              const void* columns, const void* dy,
                              const WgradSpace& space, void* dw) const {
  const Columns layout(g_, samples);
  const int64_t bytes = products_.arithmetic.operand_bytes;
  const int64_t acc_bytes = products_.arithmetic.accumulator_bytes;
  if (WgradRunsOverSamples(g_)) {
    for (int64_t i = 0; i < g_.groups; ++i) {
      JCB_RETURN_IF_ERROR(
          Run(stream, samples, At(columns, i * layout.group_stride * bytes),
              At(dy, i * g_.group_K() * bytes),
              At(space.partials, i * g_.group_K() * acc_bytes)));
    }
  } else {
    for (int64_t n = 0; n < samples; ++n) {
      JCB_RETURN_IF_ERROR(Run(stream, samples,
                              At(columns, n * layout.sample_stride * bytes),
                              At(dy, n * g_.output_pixels() * g_.K * bytes),
                              At(space.partials, n * g_.w_size() * acc_bytes)));
    }
  }
  return Check(SumSamples(stream, dtype, samples, g_.w_size(), first == 0,
                          first + samples == g_.N, space.partials,
                          space.accumulator, dw));
}

}  // namespace jax_convbatch
