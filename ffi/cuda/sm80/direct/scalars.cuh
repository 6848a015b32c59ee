// SPDX-License-Identifier: Apache-2.0
// A thread has some rows of outputs below each other, of all channels or of a
// few: with taps that are neighbours along a column, each number that it loads
// serves all these rows. Neighbouring threads have neighbouring channels of a
// pixel, then neighbouring pixels of a row.
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
  int channels, outputs;  // of the source, of the result
  // Of the filter in memory: from its first tap that is met, to the next one,
  // and to the next channels.
  int filter_first, tap_step, in_step, out_step;
  uint32_t items;
  FastDivmod<uint32_t> output_groups, columns, row_groups, slices;
};

// What a thread reads and writes at once, as wide as so many floats allow.
template <int kCount>
struct alignas(kCount % 4 == 0   ? 16
               : kCount % 2 == 0 ? 8
                                 : 4) Floats {
  float at[kCount];
};

// In whole accesses: the compiler takes assignments apart.
template <int kCount>
__device__ inline void Store(const Floats<kCount>& from, float* to) {
  constexpr int kWidth = alignof(Floats<kCount>) / sizeof(float);
#pragma unroll
  for (int i = 0; i < kCount; i += kWidth) {
    if constexpr (kWidth == 4) {
      asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to + i),
                   "f"(from.at[i]), "f"(from.at[i + 1]), "f"(from.at[i + 2]),
                   "f"(from.at[i + 3])
                   : "memory");
    } else if constexpr (kWidth == 2) {
      asm volatile("st.global.v2.f32 [%0], {%1, %2};" ::"l"(to + i),
                   "f"(from.at[i]), "f"(from.at[i + 1])
                   : "memory");
    } else {
      to[i] = from.at[i];
    }
  }
}

// The filter as threads read it: [depth][channel][column][row][output].
__device__ inline void LoadScalarFilter(const ScalarProblem& p, float* shared) {
  const int count = p.d.taps * p.channels * p.w.taps * p.h.taps * p.outputs;
  for (int i = threadIdx.x; i < count; i += kScalarThreads) {
    int rest = i;
    const int output = rest % p.outputs;
    rest /= p.outputs;
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
  using Outputs = Floats<kOutputs>;
  extern __shared__ __align__(16) float filter[];
  LoadScalarFilter(p, filter);
  __syncthreads();
  const int pitch = p.w.in_size * p.channels;
  for (uint32_t item = blockIdx.x * kScalarThreads + threadIdx.x;
       item < p.items; item += gridDim.x * kScalarThreads) {
    uint32_t rest = item;
    const int first_output = kOutputs * TakeDigit(p.output_groups, rest);
    const int column = TakeDigit(p.columns, rest);
    const int row = kRows * TakeDigit(p.row_groups, rest);
    const int slice = TakeDigit(p.slices, rest);
    const int sample = rest;
    const int y = row + p.h.first;
    constexpr int kMet = kTaps > 0 ? kRows + kTaps - 1 : kRows;
    const unsigned rows_there = RowsThere(p.h, y, kTaps > 0 ? kMet : 0);
    Outputs sums[kRows] = {};
    const float* w = filter + first_output;
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
            const Outputs of_tap = *reinterpret_cast<const Outputs*>(w);
#pragma unroll
            for (int i = 0; i < kRows; ++i) {
#pragma unroll
              for (int k = 0; k < kOutputs; ++k) {
                float& sum = sums[i].at[k];
                sum = fmaf(of_rows[i], of_tap.at[k], sum);
              }
            }
            w += p.outputs;
          };
          if constexpr (kTaps > 0) {
            const unsigned there = in_columns ? rows_there : 0;
            if (there == (1u << kMet) - 1) {
#pragma unroll
              for (int i = 0; i < kMet; ++i) {
                met[i] = __ldg(from + i * pitch);
              }
            } else {
#pragma unroll
              for (int i = 0; i < kMet; ++i) {
                met[i] = there >> i & 1 ? __ldg(from + i * pitch) : 0.0f;
              }
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
            p.w.out_size * p.outputs +
        column * p.outputs + first_output;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (row + i >= p.h.out_size) break;
      const int64_t below = int64_t{i} * p.w.out_size * p.outputs;
      Store(sums[i], result + below);
    }
  }
}

}  // namespace jax_convbatch::direct
