// SPDX-License-Identifier: Apache-2.0
#include "cuda/common/transpose.cuh"
#include "cuda/sm90/kernels/conv/transpose_filter.h"

namespace jax_convbatch::hopper {
namespace {

constexpr int kThreads = 256;

// Of tap blockIdx.y.
__global__ void __launch_bounds__(kThreads)
    TransposeFilterKernel(const __grid_constant__ Transposition first) {
  __shared__ float square[kSquare][kSquare + 1];
  Transposition tap = first;
  const int64_t before = int64_t{blockIdx.y} * tap.rows * tap.columns;
  tap.from += before;
  tap.to += before;
  TransposeSquare<kThreads>(tap, square);
}

}  // namespace

cudaError_t TransposeFilter(const ConvGeometry& g, const void* w, void* to,
                            Stage stage, cudaStream_t stream) {
  if (stage == Stage::kPrepare) {
    cudaFuncAttributes loads;
    return cudaFuncGetAttributes(&loads, TransposeFilterKernel);
  }
  const Transposition tap = {static_cast<const float*>(w),
                             static_cast<float*>(to), static_cast<int>(g.C),
                             static_cast<int>(g.K)};
  const dim3 blocks(static_cast<unsigned>(Squares(tap)),
                    static_cast<unsigned>(g.taps()));
  TransposeFilterKernel<<<blocks, kThreads, 0, stream>>>(tap);
  return cudaGetLastError();
}

}  // namespace jax_convbatch::hopper
