// SPDX-License-Identifier: Apache-2.0
// What the teams of a thread block summed, added up.
#pragma once

#include <cuda_runtime_api.h>

namespace jax_convbatch {

// Thread t sums kVector columns' values as lane t % lanes of team t / lanes;
// `sum` is zero in threads beyond the teams. The order of adding follows from
// the sizes. Calls store(lane, i, total) once for every value of every lane. By
// all threads of the block.
template <int kVector, int kThreads, typename Acc, typename Store>
__device__ __forceinline__ void AddTeams(Acc (&sum)[kVector], int lanes,
                                         int teams, Store&& store) {
  constexpr int kPad = 32 / kVector;  // different banks for a vector's values
  __shared__ Acc shared[kVector][kThreads + kPad];
  int parts = teams, at = threadIdx.x;
  bool writes = true;
  if (lanes <= 32 && (lanes & (lanes - 1)) == 0) {  // a warp's teams first
    for (int step = lanes; step < 32; step *= 2) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        sum[i] += __shfl_xor_sync(~0u, sum[i], step);
      }
    }
    const int in_warp = threadIdx.x % 32;
    parts = kThreads / 32;
    at = threadIdx.x / 32 * lanes + in_warp;
    writes = in_warp < lanes;
  }
  if (writes) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) shared[i][at] = sum[i];
  }
  __syncthreads();
  for (int t = threadIdx.x; t < lanes * kVector; t += kThreads) {
    const int lane = t / kVector, i = t % kVector;
    Acc total = 0;
#pragma unroll 8
    for (int part = 0; part < parts; ++part) {
      total += shared[i][part * lanes + lane];
    }
    store(lane, i, total);
  }
}

}  // namespace jax_convbatch
