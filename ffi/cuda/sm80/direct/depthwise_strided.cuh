// SPDX-License-Identifier: Apache-2.0
// dgrad of depthwise convolutions of stride 2: a thread computes the four
// residue classes of a patch, all of which read the same pixels of dy.
#pragma once

#include "cuda/sm80/direct/depthwise_kind.h"
#include "cuda/sm80/direct/depthwise_problem.h"
#include "cuda/sm80/direct/pairs.cuh"

namespace jax_convbatch::direct {

// Along one axis, of an odd number of taps. The class `kLong` has one tap more
// than the other, the even ones.
template <int kTaps, int kLong>
struct Class {
  static constexpr int kMost = (kTaps + 1) / 2;
  __device__ static constexpr int Count(int c) {
    return c == kLong ? kMost : kMost - 1;
  }
  // The first input, from that of the long class on, and its tap; the next
  // input's tap is two before.
  __device__ static constexpr int Input(int c) { return c > kLong ? 1 : 0; }
  __device__ static constexpr int First(int c) {
    return c == kLong ? kTaps - 1 : kTaps - 2;
  }
};

// sums[class of rows][row][class of columns][column], of each class.
template <int kRows, int kCols>
using StridedSums = float2[2][kRows][2][kCols];

template <typename T, int kTaps, int kLong, int kRows, int kCols, int kLanes,
          bool kKept>
__device__ void SumStrided(const char* at, int row_bytes, const float2* weights,
                           const float2 (&kept)[kKept ? kTaps * kTaps : 1],
                           StridedSums<kRows, kCols>& sums) {
  using C = Class<kTaps, kLong>;
  constexpr int kPixel = kLanes * 2 * sizeof(T);
  constexpr int kWindow = kCols + C::kMost - 1;
#pragma unroll
  for (int u = 0; u < kRows + C::kMost - 1; ++u) {
    float2 window[kWindow];
#pragma unroll
    for (int i = 0; i < kWindow; ++i) {
      window[i] = LoadPair<T>(at + u * row_bytes + i * kPixel);
    }
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
#pragma unroll
      for (int ch = 0; ch < 2; ++ch) {
        const int i = u - row - C::Input(ch);
        if (i < 0 || i >= C::Count(ch)) continue;
#pragma unroll
        for (int cw = 0; cw < 2; ++cw) {
#pragma unroll
          for (int j = 0; j < C::Count(cw); ++j) {
            const int tap =
                (C::First(ch) - 2 * i) * kTaps + C::First(cw) - 2 * j;
            const float2 weight =
                kKept ? kept[kKept ? tap : 0] : weights[tap * kLanes];
#pragma unroll
            for (int col = 0; col < kCols; ++col) {
              MultiplyAdd(window[col + C::Input(cw) + j], weight,
                          sums[ch][row][cw][col]);
            }
          }
        }
      }
    }
  }
}

// To dx[h][w] on, rows and columns of which there are `rows` and `cols`.
template <typename T, int kRows, int kCols>
__device__ void StoreStrided(const StridedSums<kRows, kCols>& sums, T* to,
                             int row_stride, int pixel_stride, int rows,
                             int cols) {
  if (rows >= 2 * kRows && cols >= 2 * kCols) {
#pragma unroll
    for (int i = 0; i < 2 * kRows; ++i) {
#pragma unroll
      for (int j = 0; j < 2 * kCols; ++j) {
        StorePair<true>(to + j * pixel_stride, sums[i % 2][i / 2][j % 2][j / 2],
                        2);
      }
      to += row_stride;
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 2 * kRows; ++i) {
    if (i >= rows) return;
#pragma unroll
    for (int j = 0; j < 2 * kCols; ++j) {
      if (j < cols) {
        StorePair<true>(to + j * pixel_stride, sums[i % 2][i / 2][j % 2][j / 2],
                        2);
      }
    }
    to += row_stride;
  }
}

}  // namespace jax_convbatch::direct
