// The last step of wgrad: the workers' sums are added in order.
#ifndef JAX_CONVBATCH_CUDA_DIRECT_ADD_PARTIALS_CUH_
#define JAX_CONVBATCH_CUDA_DIRECT_ADD_PARTIALS_CUH_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/direct/direct.h"
#include "cuda/dtypes.h"
#include "cuda/hopper/launch.cuh"

namespace jax_convbatch::direct {

// A block adds kColumns neighbouring sums; kTeams threads share the workers of
// each, then their sums are added in order.
inline constexpr int kColumns = 32, kTeams = 16;

// In a kernel whose sums are added: the blocks that add them may start, and
// wait for its end.
__device__ inline void LaunchAdding() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

template <typename T>
__global__ void __launch_bounds__(kColumns* kTeams)
    AddPartials(int workers, int64_t size, const float* partials, T* dw) {
  __shared__ float sums[kTeams][kColumns];
  const int column = threadIdx.x % kColumns, team = threadIdx.x / kColumns;
  const int64_t at = int64_t{blockIdx.x} * kColumns + column;
  float sum = 0.0f;
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  if (at < size) {
#pragma unroll 16
    for (int worker = team; worker < workers; worker += kTeams) {
      sum += partials[worker * size + at];
    }
  }
  sums[team][column] = sum;
  __syncthreads();
  if (team != 0 || at >= size) return;
  for (int i = 1; i < kTeams; ++i) sum += sums[i][column];
  dw[at] = Convert<T>(sum);
}

// `dependent`: the kernel before calls LaunchAdding(); Hopper only.
template <typename T>
cudaError_t AddPartialsOrPrepare(int workers, int64_t size,
                                 const void* partials, void* dw, Stage stage,
                                 cudaStream_t stream, bool dependent = false) {
  if (stage == Stage::kPrepare) {
    cudaFuncAttributes loads;
    return cudaFuncGetAttributes(&loads, &AddPartials<T>);
  }
  const auto blocks = static_cast<unsigned>((size + kColumns - 1) / kColumns);
  constexpr int kThreads = kColumns * kTeams;
  const auto* const from = static_cast<const float*>(partials);
  auto* const to = static_cast<T*>(dw);
  if (dependent) {
    return hopper::LaunchDependent(&AddPartials<T>, blocks, kThreads, stream,
                                   workers, size, from, to);
  }
  AddPartials<T><<<blocks, kThreads, 0, stream>>>(workers, size, from, to);
  return cudaGetLastError();
}

}  // namespace jax_convbatch::direct

#endif  // JAX_CONVBATCH_CUDA_DIRECT_ADD_PARTIALS_CUH_
