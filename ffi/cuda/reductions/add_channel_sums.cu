// SPDX-License-Identifier: Apache-2.0
#include "cuda/reductions/add_channel_sums.h"

namespace jax_convbatch {
namespace {

constexpr int kColumns = 32, kTeams = 32;

// A thread adds some chunks of one column of a sample, a block all.
__global__ void __launch_bounds__(kColumns* kTeams)
    AddChannelSumsKernel(int64_t K, int chunks, int tiles,
                         const float* __restrict__ partials,
                         float* __restrict__ s1, float* __restrict__ s2) {
  const int lane = threadIdx.x % kColumns;
  const int team = threadIdx.x / kColumns;
  const int sample = blockIdx.x / tiles;
  const int tile = blockIdx.x - sample * tiles;
  const int64_t column = int64_t{tile} * kColumns + lane;
  partials += int64_t{sample} * chunks * 2 * K;
  float sum = 0;
  if (column < 2 * K) {
#pragma unroll 8
    for (int c = team; c < chunks; c += kTeams) {
      sum += partials[c * 2 * K + column];
    }
  }
  __shared__ float shared[kTeams][kColumns];
  shared[team][lane] = sum;
  __syncthreads();
  if (team > 0 || column >= 2 * K) return;
  float total = 0;
#pragma unroll
  for (int t = 0; t < kTeams; ++t) total += shared[t][lane];
  const int64_t at = sample * K + column;
  (column < K ? s1[at] : s2[at - K]) = total;
}

}  // namespace

cudaError_t AddChannelSums(cudaStream_t stream, int64_t samples, int64_t chunks,
                           int64_t K, const float* partials, float* s1,
                           float* s2) {
  const int64_t tiles = (2 * K + kColumns - 1) / kColumns;
  const int64_t blocks = samples * tiles;
  if (blocks > INT32_MAX || chunks > INT32_MAX) {
    return cudaErrorInvalidConfiguration;
  }
  AddChannelSumsKernel<<<static_cast<unsigned>(blocks), kColumns * kTeams, 0,
                         stream>>>(K, static_cast<int>(chunks),
                                   static_cast<int>(tiles), partials, s1, s2);
  return cudaGetLastError();
}

}  // namespace jax_convbatch
