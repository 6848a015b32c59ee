// SPDX-License-Identifier: Apache-2.0
// The filter for bf16x6_conv.cuh.
#pragma once

#include "cuda/common/dependent_launch.cuh"
#include "cuda/sm90/kernels/bf16x6/bf16x6_terms.cuh"

namespace jax_convbatch::hopper {

// From w [taps, C, K] to terms [3, taps, depth, width]: rows are channels that
// are summed over, columns those of the result, both with zeros up to a
// multiple of kBf16x6Depth and of 8.
struct Bf16x6FilterProblem {
  const float* w;
  __nv_bfloat16* terms;
  int taps, C, K;
  int depth, width;
};

// The row of 16 that channel 4 t + i of 16 has: a lane of the multiplier takes
// rows 2 t, 2 t + 1 and 8 further, and loads pixels' channels 4 t to 4 t + 3.
__device__ __forceinline__ int ChannelOfRow(int row) {
  return row / 16 * 16 + row % 8 / 2 * 4 + row % 16 / 8 * 2 + row % 2;
}

// A block has a tap's weights of 32 rows and 64 columns, a thread two columns.
// kTurned: rows are K (dgrad), not C.
template <bool kTurned>
__global__ void __launch_bounds__(256)
    Bf16x6FilterKernel(const __grid_constant__ Bf16x6FilterProblem p) {
  constexpr int kAtOnce = 8, kEach = kBf16x6Depth / kAtOnce;
  LaunchDependents();
  __shared__ float turned[kTurned ? 64 : 1][kBf16x6Depth + 1];
  const int across = (p.width + 63) / 64, down = p.depth / kBf16x6Depth;
  const int tap = blockIdx.x / (across * down);
  const int at = blockIdx.x - tap * across * down;
  const int first_row = at / across * kBf16x6Depth;
  const int first_column = at % across * 64;
  const int lane = threadIdx.x % 32, line = threadIdx.x / 32;
  const float* const w = p.w + int64_t{tap} * p.C * p.K;
  const int column = first_column + 2 * lane;
  float2 v[kEach];
  if constexpr (kTurned) {
#pragma unroll
    for (int i = 0; i < 64; i += kAtOnce) {
      const int c = first_column + line + i, k = first_row + lane;
      turned[line + i][lane] =
          c < p.C && k < p.K ? w[int64_t{c} * p.K + k] : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int row = ChannelOfRow(line + i * kAtOnce);
      v[i] = make_float2(turned[2 * lane][row], turned[2 * lane + 1][row]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int c = first_row + ChannelOfRow(line + i * kAtOnce);
      v[i] = make_float2(0.0f, 0.0f);
      if (c < p.C && column < p.K) {
        v[i] = *reinterpret_cast<const float2*>(w + int64_t{c} * p.K + column);
      }
    }
  }
  if (column >= p.width) return;
  const int64_t term = int64_t{p.taps} * p.depth * p.width / 2;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int row = first_row + line + i * kAtOnce;
    uint32_t* const to =
        reinterpret_cast<uint32_t*>(p.terms) +
        ((int64_t{tap} * p.depth + row) * p.width + column) / 2;
    const PairTerms terms = TermsOfPair(v[i].x, v[i].y);
    to[0] = terms.high;
    to[term] = terms.middle;
    to[2 * term] = terms.low;
  }
}

}  // namespace jax_convbatch::hopper
