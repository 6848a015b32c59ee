// SPDX-License-Identifier: Apache-2.0
#include "cuda/common/dependent_launch.cuh"
#include "cuda/reductions/add_channel_sums.h"

namespace jax_convbatch {
namespace {

constexpr int kColumns = 32, kTeams = 32;

// A thread adds some chunks of one column of a sample, a block all. K: columns
// of each of the two.
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
  WaitForPrimary();
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

constexpr int kGroupThreads = 256;

// A block adds both of a group of a sample: a thread some of each, then the
// threads' by halves.
__global__ void __launch_bounds__(kGroupThreads)
    AddGroupSumsKernel(int chunks, int groups, int channels,
                       const float* __restrict__ partials,
                       float* __restrict__ s1, float* __restrict__ s2) {
  const int sample = blockIdx.x / groups;
  const int group = blockIdx.x - sample * groups;
  const int64_t half = int64_t{groups} * channels;
  partials += int64_t{sample} * chunks * 2 * half + int64_t{group} * channels;
  WaitForPrimary();
  float first = 0, second = 0;
  const int count = chunks * channels;
#pragma unroll 4
  for (int i = threadIdx.x; i < count; i += kGroupThreads) {
    const int chunk = i / channels;
    const int64_t at = chunk * 2 * half + (i - chunk * channels);
    first += partials[at];
    second += partials[at + half];
  }
  __shared__ float2 shared[kGroupThreads];
  shared[threadIdx.x] = {first, second};
  for (int n = kGroupThreads / 2; n > 0; n /= 2) {
    __syncthreads();
    if (threadIdx.x < n) {
      const float2 other = shared[threadIdx.x + n];
      shared[threadIdx.x].x += other.x;
      shared[threadIdx.x].y += other.y;
    }
  }
  if (threadIdx.x > 0) return;
  s1[blockIdx.x] = shared[0].x;
  s2[blockIdx.x] = shared[0].y;
}

}  // namespace

cudaError_t AddChannelSums(cudaStream_t stream, const ChannelSumsShape& shape,
                           const float* partials, float* s1, float* s2,
                           Stage stage) {
  if (stage == Stage::kPrepare) {
    cudaFuncAttributes loads;
    return shape.channels == 1
               ? cudaFuncGetAttributes(&loads, &AddChannelSumsKernel)
               : cudaFuncGetAttributes(&loads, &AddGroupSumsKernel);
  }
  const int64_t tiles = (2 * shape.groups + kColumns - 1) / kColumns;
  const int64_t blocks =
      shape.samples * (shape.channels == 1 ? tiles : shape.groups);
  if (blocks > INT32_MAX || shape.chunks * shape.channels > INT32_MAX) {
    return cudaErrorInvalidConfiguration;
  }
  const int chunks = static_cast<int>(shape.chunks);
  if (shape.channels == 1) {
    return LaunchKernel(&AddChannelSumsKernel,
                        {blocks, kColumns * kTeams, Start::kEarly}, stream,
                        shape.groups, chunks, static_cast<int>(tiles), partials,
                        s1, s2);
  }
  return LaunchKernel(&AddGroupSumsKernel,
                      {blocks, kGroupThreads, Start::kEarly}, stream, chunks,
                      static_cast<int>(shape.groups),
                      static_cast<int>(shape.channels), partials, s1, s2);
}

}  // namespace jax_convbatch
