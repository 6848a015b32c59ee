// SPDX-License-Identifier: Apache-2.0
// The last step of wgrad: the workers' sums are added in order.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "cuda/common/floats.h"
#include "cuda/sm80/direct/direct.h"

namespace jax_convbatch::direct {

// A block adds kColumns neighbouring sums; up to kTeams threads, one to a
// worker where they suffice, share the workers of each, then their sums are
// added in order.
inline constexpr int kColumns = 32, kTeams = 16;
inline unsigned AddThreads(int workers) {
  return kColumns * std::clamp(workers, 1, kTeams);
}

// The sum at `at` in the threads of team 0.
__device__ inline float SumInOrder(int workers, int64_t size, int64_t at,
                                   const float* __restrict__ partials) {
  __shared__ float sums[kTeams][kColumns];
  const int column = threadIdx.x % kColumns, team = threadIdx.x / kColumns;
  const int teams = blockDim.x / kColumns;
  float sum = 0.0f;
  if (at < size) {
#pragma unroll 8
    for (int worker = team; worker < workers; worker += teams) {
      sum += partials[worker * size + at];
    }
  }
  sums[team][column] = sum;
  __syncthreads();
  if (team == 0) {
    for (int i = 1; i < teams; ++i) sum += sums[i][column];
  }
  return sum;
}

template <typename T>
__global__ void __launch_bounds__(kColumns* kTeams)
    AddPartials(int workers, int64_t size, const float* __restrict__ partials,
                T* __restrict__ dw) {
  const int64_t at = int64_t{blockIdx.x} * kColumns + threadIdx.x % kColumns;
  const float sum = SumInOrder(workers, size, at, partials);
  if (threadIdx.x < kColumns && at < size) dw[at] = Convert<T>(sum);
}

template <typename T>
cudaError_t AddPartialsOrPrepare(int workers, int64_t size,
                                 const void* partials, void* dw, Stage stage,
                                 cudaStream_t stream) {
  if (stage == Stage::kPrepare) {
    cudaFuncAttributes loads;
    return cudaFuncGetAttributes(&loads, &AddPartials<T>);
  }
  const auto blocks = static_cast<unsigned>((size + kColumns - 1) / kColumns);
  AddPartials<T><<<blocks, AddThreads(workers), 0, stream>>>(
      workers, size, static_cast<const float*>(partials), static_cast<T*>(dw));
  return cudaGetLastError();
}

}  // namespace jax_convbatch::direct
