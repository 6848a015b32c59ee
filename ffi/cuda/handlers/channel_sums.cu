// SPDX-License-Identifier: Apache-2.0
// The handler of channel_sums.cuh.
#include <sstream>
#include <string>

#include "cuda/common/status.h"
#include "cuda/handlers/handlers.h"
#include "cuda/reductions/channel_sums.cuh"
#include "ffi_checks.h"

namespace jax_convbatch {
namespace {

template <typename T>
cudaError_t Sums(cudaStream_t stream, int64_t samples, int64_t rows, int64_t K,
                 int64_t chunk_rows, const void* a, const void* b,
                 void* partials, float* s1, float* s2) {
  constexpr int kVector = 16 / sizeof(T);
  const auto launch = K % kVector == 0 ? &LaunchChannelSums<T, kVector>
                                       : &LaunchChannelSums<T, 1>;
  return launch(stream, samples, rows, K, chunk_rows, a, b, partials, s1, s2);
}

ffi::Error ChannelSumsExecute(cudaStream_t stream, ffi::AnyBuffer a,
                              ffi::AnyBuffer b,
                              ffi::Result<ffi::Buffer<ffi::F32>> s1,
                              ffi::Result<ffi::Buffer<ffi::F32>> s2,
                              ffi::Result<ffi::AnyBuffer> workspace,
                              int64_t samples, int64_t rows, int64_t K,
                              int64_t chunk_rows) {
  auto where = [&] {
    std::ostringstream out;
    out << "channel_sums of [" << samples << ", " << rows << ", " << K
        << "] in chunks of " << chunk_rows << " rows";
    return out.str();
  };
  const ffi::DataType dtype = a.element_type();
  if (samples < 1 || rows < 1 || K < 1 || chunk_rows < 1 ||
      b.element_type() != dtype ||
      (dtype != ffi::F32 && dtype != ffi::F16 && dtype != ffi::BF16) ||
      static_cast<int64_t>(a.element_count()) != samples * rows * K ||
      static_cast<int64_t>(b.element_count()) != samples * rows * K ||
      static_cast<int64_t>(s1->element_count()) != samples * K ||
      static_cast<int64_t>(s2->element_count()) != samples * K) {
    return ffi::Error::InvalidArgument(
        "jax_convbatch: unsupported dtypes or sizes in " + where());
  }
  const int64_t chunks = (rows + chunk_rows - 1) / chunk_rows;
  if (static_cast<int64_t>(workspace->size_bytes()) <
      samples * chunks * 2 * K * int64_t{sizeof(float)}) {
    return ffi::Error::Internal(
        "jax_convbatch: the workspace is too small in " + where());
  }
  auto run = [&](auto tag) {
    using T = typename decltype(tag)::type;
    return Sums<T>(stream, samples, rows, K, chunk_rows, a.untyped_data(),
                   b.untyped_data(), workspace->untyped_data(),
                   s1->typed_data(), s2->typed_data());
  };
  const cudaError_t status = dtype == ffi::BF16  ? run(TypeTag<__nv_bfloat16>())
                             : dtype == ffi::F16 ? run(TypeTag<__half>())
                                                 : run(TypeTag<float>());
  return ToError(status, where);
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(CudaChannelSumsExecute, ChannelSumsExecute,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Arg<ffi::AnyBuffer>()  // a
                                  .Arg<ffi::AnyBuffer>()  // b
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::AnyBuffer>()  // workspace
                                  .Attr<int64_t>("samples")
                                  .Attr<int64_t>("rows")
                                  .Attr<int64_t>("K")
                                  .Attr<int64_t>("chunk_rows"),
                              {ffi::Traits::kCmdBufferCompatible});

}  // namespace jax_convbatch
