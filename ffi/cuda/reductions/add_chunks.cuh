// SPDX-License-Identifier: Apache-2.0
// The second kernel of sums over rows: adds what the chunks gave.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "cuda/common/dependent_launch.cuh"
#include "cuda/common/floats.h"
#include "cuda/reductions/add_teams.cuh"
#include "cuda/reductions/load_in_order.cuh"

namespace jax_convbatch {

inline constexpr int kAddThreads = 256;
inline constexpr int kAddColumns = 16;  // of a block: many blocks share a K

// sums[batch, k] = the sum over c of partials[batch, c, k]. A block has `lanes`
// vectors of columns; its teams share the chunks.
template <typename T, int kVector>
__global__ void __launch_bounds__(kAddThreads, 1)
    AddChunksKernel(int64_t chunks, int64_t K, int lanes, int tiles,
                    const Accumulator<T>* __restrict__ partials,
                    T* __restrict__ sums) {
  using Acc = Accumulator<T>;
  using Loaded = Vector<Acc, kVector>;
  constexpr int kUnroll = 8;  // loads in flight
  const unsigned batch = blockIdx.x / tiles;
  const int tile = static_cast<int>(blockIdx.x - batch * tiles);
  const int teams = kAddThreads / lanes;
  const int team = threadIdx.x / lanes;
  const int64_t columns = K / kVector;
  const int64_t column = int64_t{tile} * lanes + threadIdx.x - team * lanes;
  Acc sum[kVector] = {};
  WaitForPrimary();
  if (team < teams && column < columns) {
    const Loaded* const from = reinterpret_cast<const Loaded*>(partials) +
                               batch * chunks * columns + column;
    for (int64_t chunk = team; chunk < chunks; chunk += kUnroll * teams) {
      Loaded loaded[kUnroll] = {};
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int64_t of = chunk + u * teams;
        if (of < chunks) loaded[u] = LoadInOrder(from + of * columns);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) sum[i] += loaded[u].values[i];
      }
    }
  }
  const int64_t lanes_left = columns - int64_t{tile} * lanes;
  T* const to = sums + batch * K + int64_t{tile} * lanes * kVector;
  AddTeams<kVector, kAddThreads>(sum, lanes, teams,
                                 [&](int lane, int i, Acc total) {
                                   if (lane >= lanes_left) return;
                                   to[lane * kVector + i] = Convert<T>(total);
                                 });
}

// To be launched right after the kernel that writes `partials`.
template <typename T>
cudaError_t LaunchAddChunks(cudaStream_t stream, int64_t batch, int64_t chunks,
                            int64_t K, const void* partials, T* sums) {
  using Acc = Accumulator<T>;
  auto launch = [&](auto kernel, int vector) {
    const int64_t columns = K / vector;
    const int lanes =
        static_cast<int>(std::min<int64_t>(columns, kAddColumns / vector));
    const int64_t tiles = (columns + lanes - 1) / lanes;
    if (batch * tiles > INT32_MAX) return cudaErrorInvalidConfiguration;
    return LaunchKernel(kernel, {batch * tiles, kAddThreads, Start::kEarly},
                        stream, chunks, K, lanes, static_cast<int>(tiles),
                        static_cast<const Acc*>(partials), sums);
  };
  constexpr int kVector = 16 / sizeof(Acc);
  if (K % kVector == 0) return launch(&AddChunksKernel<T, kVector>, kVector);
  return launch(&AddChunksKernel<T, 1>, 1);
}

}  // namespace jax_convbatch
