// SPDX-License-Identifier: Apache-2.0
#include "cuda/common/dtypes.h"
#include "cuda/reductions/sum_samples.h"

namespace jax_convbatch {
namespace {

// Few threads a block: a small filter has to spread over the SMs.
constexpr int kThreads = 64;
// Loads in flight in a thread.
constexpr int kUnroll = 32;

template <typename T>
__global__ void __launch_bounds__(kThreads)
    SumSamplesKernel(int64_t samples, int64_t size, bool first, bool last,
                     const Accumulator<T>* __restrict__ partials,
                     Accumulator<T>* __restrict__ accumulator,
                     T* __restrict__ dw) {
  using Acc = Accumulator<T>;
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= size) return;
  Acc sum = first ? Acc{0} : accumulator[at];
  int64_t n = 0;
  for (; n + kUnroll <= samples; n += kUnroll) {
    Acc loaded[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) loaded[i] = partials[(n + i) * size + at];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) sum += loaded[i];
  }
  for (; n < samples; ++n) sum += partials[n * size + at];
  if (last) {
    dw[at] = Convert<T>(sum);
  } else {
    accumulator[at] = sum;
  }
}

}  // namespace

cudaError_t SumSamples(cudaStream_t stream, xla::ffi::DataType dtype,
                       int64_t samples, int64_t size, bool first, bool last,
                       const void* partials, void* accumulator, void* dw) {
  const auto blocks = static_cast<unsigned>((size + kThreads - 1) / kThreads);
  return DispatchDtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Acc = Accumulator<T>;
    SumSamplesKernel<T><<<blocks, kThreads, 0, stream>>>(
        samples, size, first, last, static_cast<const Acc*>(partials),
        static_cast<Acc*>(accumulator), static_cast<T*>(dw));
    return cudaGetLastError();
  });
}

}  // namespace jax_convbatch
