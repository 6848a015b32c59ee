// SPDX-License-Identifier: Apache-2.0
// s1[n, k] = the sum of a[n, row, k], s2[n, k] = that of a[n, row, k]
// b[n, row, k], in f32: what a norm's statistics and its gradients are made of.
// Two launches: each block sums a chunk of a sample's rows for a tile of
// channels, then the chunks' sums are added. Which thread adds what, and in
// which order, follows from the sizes of a sample.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "cuda/common/dtypes.h"
#include "cuda/reductions/add_channel_sums.h"

namespace jax_convbatch {

inline constexpr int kChannelThreads = 256;
inline constexpr int kMaxChannelLanes = 32;  // of a tile, in vectors

struct ChannelSums {
  int64_t rows, K, chunk_rows;        // of a sample
  int columns, lanes, tiles, chunks;  // K / vector = columns
};

// partials: [samples, chunks, 2, K]. kSame: b is a.
template <typename T, int kVector, bool kSame>
__global__ void __launch_bounds__(kChannelThreads)
    ChannelSumsKernel(const ChannelSums s, const T* __restrict__ a,
                      const T* __restrict__ b, float* __restrict__ partials) {
  using Loaded = Vector<T, kVector>;
  constexpr int kUnroll = kVector == 1 ? 8 : 4;
  // From the end, which whoever made the matrix wrote last.
  const int block = gridDim.x - 1 - blockIdx.x;
  const int part = block / s.tiles, tile = block - part * s.tiles;
  const int sample = part / s.chunks, chunk = part - sample * s.chunks;
  const int teams = kChannelThreads / s.lanes;
  const int team = threadIdx.x / s.lanes;
  const int lane = threadIdx.x - team * s.lanes;
  const int column = tile * s.lanes + lane;
  float sum[kVector] = {}, product[kVector] = {};
  if (team < teams && column < s.columns) {
    auto add = [&](const Loaded& u, const Loaded& v) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const float x = Convert<float>(u.values[i]);
        sum[i] += x;
        product[i] += x * (kSame ? x : Convert<float>(v.values[i]));
      }
    };
    const int64_t end = min(s.rows, (chunk + 1) * s.chunk_rows);
    const int64_t step = int64_t{teams} * s.columns;
    int64_t row = chunk * s.chunk_rows + team;
    const Loaded* from = reinterpret_cast<const Loaded*>(a);
    const Loaded* with = reinterpret_cast<const Loaded*>(b);
    int64_t at = (sample * s.rows + row) * s.columns + column;
    for (; row + (kUnroll - 1) * teams < end; row += kUnroll * teams) {
      Loaded u[kUnroll], v[kUnroll];
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        u[i] = from[at + i * step];
        if constexpr (!kSame) v[i] = with[at + i * step];
      }
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) add(u[i], v[i]);
      at += kUnroll * step;
    }
    for (; row < end; row += teams, at += step) {
      add(from[at], kSame ? from[at] : with[at]);
    }
  }
  // The teams' sums, team by team.
  __shared__ float shared[2 * kVector][kChannelThreads];
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    shared[i][threadIdx.x] = sum[i];
    shared[kVector + i][threadIdx.x] = product[i];
  }
  __syncthreads();
  const int values = 2 * kVector * s.lanes;
  for (int t = threadIdx.x; t < values; t += kChannelThreads) {
    const int i = t / s.lanes, l = t - i * s.lanes;
    const int c = tile * s.lanes + l;
    if (c >= s.columns) continue;
    float total = 0;
    for (int j = 0; j < teams; ++j) total += shared[i][j * s.lanes + l];
    const int64_t which = i / kVector;
    partials[(2 * int64_t{part} + which) * s.K + int64_t{c} * kVector +
             i % kVector] = total;
  }
}

template <typename T, int kVector>
cudaError_t LaunchChannelSums(cudaStream_t stream, int64_t samples,
                              int64_t rows, int64_t K, int64_t chunk_rows,
                              const void* a, const void* b, void* partials,
                              float* s1, float* s2) {
  ChannelSums s;
  s.rows = rows, s.K = K, s.chunk_rows = chunk_rows;
  s.columns = static_cast<int>(K / kVector);
  s.lanes = std::min(s.columns, kMaxChannelLanes);
  s.tiles = (s.columns + s.lanes - 1) / s.lanes;
  s.chunks = static_cast<int>((rows + chunk_rows - 1) / chunk_rows);
  const int64_t blocks = samples * s.tiles * s.chunks;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  const auto kernel = a == b ? &ChannelSumsKernel<T, kVector, true>
                             : &ChannelSumsKernel<T, kVector, false>;
  kernel<<<static_cast<unsigned>(blocks), kChannelThreads, 0, stream>>>(
      s, static_cast<const T*>(a), static_cast<const T*>(b),
      static_cast<float*>(partials));
  return AddChannelSums(stream, {samples, s.chunks, K},
                        static_cast<const float*>(partials), s1, s2);
}

}  // namespace jax_convbatch
