// SPDX-License-Identifier: Apache-2.0
// A thread has some rows of outputs below each other, of all channels: with
// taps that are neighbours along a column, each number that it loads serves all
// these rows. Neighbouring threads have neighbouring pixels of a row.
#pragma once

#include <cstdint>

#include "cuda/common/fast_divmod.h"
#include "cuda/sm80/direct/scalars.h"

namespace jax_convbatch::direct {

// Output o reads input o + first + tap * step with each tap; dgrad is fprop of
// dy with its taps the other way round.
struct ScalarAxis {
  int in_size, out_size, taps, first, step;
};

struct ScalarProblem {
  const float *source, *filter;
  float* result;
  ScalarAxis d, h, w;
  int channels;  // of the source
  // Of the filter in memory: from its first tap that is met, to the next one,
  // and to the next channels.
  int filter_first, tap_step, in_step, out_step;
  uint32_t items;
  FastDivmod<uint32_t> columns, row_groups, slices;
};

// The filter as threads read it: [depth][channel][column][row][output].
__device__ inline void LoadScalarFilter(const ScalarProblem& p, int outputs,
                                        float* shared) {
  const int count = p.d.taps * p.channels * p.w.taps * p.h.taps * outputs;
  for (int i = threadIdx.x; i < count; i += kScalarThreads) {
    int rest = i;
    const int output = rest % outputs;
    rest /= outputs;
    const int r = rest % p.h.taps;
    rest /= p.h.taps;
    const int s = rest % p.w.taps;
    rest /= p.w.taps;
    const int c = rest % p.channels, t = rest / p.channels;
    const int tap = (t * p.h.taps + r) * p.w.taps + s;
    shared[i] = p.filter[p.filter_first + tap * p.tap_step + c * p.in_step +
                         output * p.out_step];
  }
}

// Of the rows from the thread's first one on, a bit for each that is there.
__device__ inline unsigned RowsThere(const ScalarAxis& h, int first,
                                     int count) {
  unsigned there = 0;
  for (int i = 0; i < count; ++i) {
    const bool inside = first + i >= 0 && first + i < h.in_size;
    there |= static_cast<unsigned>(inside) << i;
  }
  return there;
}

// kTaps: along a column, where these are neighbours; else 0.
template <int kOutputs, int kRows, int kTaps>
__global__ void __launch_bounds__(kScalarThreads)
    ScalarKernel(const __grid_constant__ ScalarProblem p) {
  extern __shared__ float filter[];
  LoadScalarFilter(p, kOutputs, filter);
  __syncthreads();
  const int64_t pitch = int64_t{p.w.in_size} * p.channels;
  for (uint32_t item = blockIdx.x * kScalarThreads + threadIdx.x;
       item < p.items; item += gridDim.x * kScalarThreads) {
    uint32_t rest = item;
    const int column = TakeDigit(p.columns, rest);
    const int row = kRows * TakeDigit(p.row_groups, rest);
    const int slice = TakeDigit(p.slices, rest);
    const int sample = rest;
    const int y = row + p.h.first;
    constexpr int kMet = kTaps > 0 ? kRows + kTaps - 1 : kRows;
    const unsigned rows_there = RowsThere(p.h, y, kTaps > 0 ? kMet : 0);

    float sums[kRows][kOutputs] = {};
    const float* w = filter;
    for (int t = 0; t < p.d.taps; ++t) {
      const int z = slice + p.d.first + t * p.d.step;
      const bool in_slices = z >= 0 && z < p.d.in_size;
      const int64_t line =
          (int64_t{sample} * p.d.in_size + z) * p.h.in_size + y;
      for (int c = 0; c < p.channels; ++c) {
        for (int s = 0; s < p.w.taps; ++s) {
          const int x = column + p.w.first + s * p.w.step;
          const bool in_columns = in_slices && x >= 0 && x < p.w.in_size;
          const float* from = p.source + line * pitch + (x * p.channels + c);
          float met[kMet];
          auto add = [&](const float* of_rows) {
#pragma unroll
            for (int i = 0; i < kRows; ++i) {
#pragma unroll
              for (int k = 0; k < kOutputs; ++k) {
                sums[i][k] = fmaf(of_rows[i], w[k], sums[i][k]);
              }
            }
            w += kOutputs;
          };
          if constexpr (kTaps > 0) {
            const unsigned there = in_columns ? rows_there : 0;
#pragma unroll
            for (int i = 0; i < kMet; ++i) {
              met[i] = there >> i & 1 ? __ldg(from + i * pitch) : 0.0f;
            }
#pragma unroll
            for (int r = 0; r < kTaps; ++r) add(met + r);
          } else {
            for (int r = 0; r < p.h.taps; ++r) {
#pragma unroll
              for (int i = 0; i < kRows; ++i) {
                const int at = r * p.h.step + i;
                const bool inside =
                    in_columns && y + at >= 0 && y + at < p.h.in_size;
                met[i] = inside ? __ldg(from + at * pitch) : 0.0f;
              }
              add(met);
            }
          }
        }
      }
    }
    float* result =
        p.result +
        ((int64_t{sample} * p.d.out_size + slice) * p.h.out_size + row) *
            p.w.out_size * kOutputs +
        column * kOutputs;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (row + i >= p.h.out_size) break;
#pragma unroll
      for (int k = 0; k < kOutputs; ++k) {
        result[int64_t{i} * p.w.out_size * kOutputs + k] = sums[i][k];
      }
    }
  }
}

}  // namespace jax_convbatch::direct
