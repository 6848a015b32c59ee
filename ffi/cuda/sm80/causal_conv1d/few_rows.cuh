// SPDX-License-Identifier: Apache-2.0
// Depthwise convolutions along one axis with few results a sequence, as one
// token's in decoding: each row by itself, where a walk along chunks of rows
// would leave most of them empty. The sums are those of FpropKernel.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/common/divisor.h"
#include "cuda/common/floats.h"
#include "cuda/sm80/causal_conv1d/tasks.h"
#include "cuda/sm80/causal_conv1d/walk.cuh"

namespace jax_convbatch::causal {

struct FewRowsProblem {
  const void *x, *filter;  // the filter's tap that reads the first row
  void* y;
  int lanes, tiles;  // threads along a block's channels; blocks along all
  int columns;       // vectors of channels
  int rows;          // of y, of all samples
  int step;          // from row to row of a thread
  hopper::Divisor out;
  int x_rows, before;  // row t reads x from t - before on
  int dilation, tap_step;
};

// Rows of a thread, all of whose taps are in flight at a time. With more of
// them the compiler would put sums between the loads.
template <typename T, int kTaps, int kVector>
inline constexpr int kFewRows =
    std::clamp(8 * static_cast<int>(sizeof(T)) / (kTaps * kVector), 1, 4);

template <typename T, int kTaps, int kVector>
__global__ void __launch_bounds__(kThreads)
    FewRowsKernel(const FewRowsProblem p) {
  using V = Vector<T, kVector>;
  constexpr int kRows = kFewRows<T, kTaps, kVector>;
  const int lane = threadIdx.x % static_cast<unsigned>(p.lanes);
  const int team = threadIdx.x / static_cast<unsigned>(p.lanes);
  const int group = blockIdx.x / static_cast<unsigned>(p.tiles);
  const int column = (blockIdx.x - group * p.tiles) * p.lanes + lane;
  const int first = group * (kThreads / p.lanes) + team;
  if (column >= p.columns || first >= p.rows) return;
  const auto* const x = static_cast<const V*>(p.x) + column;
  auto* const y = static_cast<V*>(p.y) + column;

  // All are loaded, also where x has none: a load with a condition would be
  // taken apart at once, and the next would wait for it.
  V rows[kRows][kTaps];
  int at[kRows];  // of x, what the first tap reads
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int row = min(first + i * p.step, p.rows - 1);
    const int sample = row / p.out;
    at[i] = row - sample * static_cast<int>(p.out) - p.before;
#pragma unroll
    for (int k = 0; k < kTaps; ++k) {
      const int from = min(max(at[i] + k * p.dilation, 0), p.x_rows - 1);
      rows[i][k] = x[(int64_t{sample} * p.x_rows + from) * p.columns];
    }
  }
  float w[kTaps][kVector];
#pragma unroll
  for (int k = 0; k < kTaps; ++k) {
    const int64_t row = int64_t{k} * p.tap_step * p.columns;
    const V taps = static_cast<const V*>(p.filter)[row + column];
    Widen(taps, w[k]);
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int row = first + i * p.step;
    if (row >= p.rows) return;
    float sums[kVector] = {};
#pragma unroll
    for (int k = 0; k < kTaps; ++k) {
      float values[kVector];
      Widen(rows[i][k], values);
      const bool has = static_cast<unsigned>(at[i] + k * p.dilation) <
                       static_cast<unsigned>(p.x_rows);
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        sums[v] = fmaf(w[k][v], has ? values[v] : 0.0f, sums[v]);
      }
    }
    y[int64_t{row} * p.columns] = Narrow<T>(sums);
  }
}

}  // namespace jax_convbatch::causal
