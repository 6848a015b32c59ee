// SPDX-License-Identifier: Apache-2.0
// Groups of 2, 4 and 8 channels in the row bands of groups of 16: the filter
// that a block keeps has zeros where input and output are of different groups.
// An infinity or nan would meet the zeros of its neighbours' groups: what
// became nan is summed again without them before a tile is stored.
#pragma once

#include "cuda/sm90/copy/pipeline.cuh"
#include "cuda/sm90/kernels/row_band/row_band_problem.h"
#include "cuda/sm90/kernels/row_band/row_band_store.cuh"

namespace jax_convbatch::hopper {

// Groups that are as wide as their tiles have.
struct Whole {};

// `log` of the channels of a group; fprop's
// filter, [taps, 2^log, channels], also in dgrad.
struct FewGroups {
  const void *input, *filter;
  int input_height, input_width;
  int first_h, first_w;  // of the first output's first tap
  int log;
};

template <typename Few>
inline constexpr bool kIsFew = std::is_same_v<Few, FewGroups>;

// Which tap of the filter is number r, s of those of a row band.
__device__ __forceinline__ int FilterTap(const RowBandProblem& problem, int r,
                                         int s) {
  return (problem.taps_h.tap + r * problem.taps_h.tap_step) *
             problem.filter_width +
         problem.taps_w.tap + s * problem.taps_w.tap_step;
}

// By all threads of a block: of each tap 16 rows of 64 output channels (those
// of fprop), as LoadFilter copies them. Output channels of sixteen neighbours
// have one row for each of their inputs.
__device__ __forceinline__ void BuildFilter(const RowBandProblem& problem,
                                            const FewGroups& few, int channel,
                                            uint32_t filter) {
  const int width = problem.taps_w.count;
  const int chunks = problem.taps_h.count * width * 16 * 8;
  for (int i = threadIdx.x; i < chunks; i += kThreads) {
    const int eight = i % 8, row = i / 8 % 16, number = i / 128;
    const int r = number / width, s = number - r * width;
    const int first = channel + eight * 8;
    uint4 words = {0, 0, 0, 0};
    // Of channels first + 0, 2, 4 and 6 the group among the sixteen.
    const int group = row >> few.log, own = eight % 2 * 8;
    auto same = [&](int c) { return (own + c) >> few.log == group; };
    if (first < problem.channels) {
      const int in_group = row & ((1 << few.log) - 1);
      const int64_t at =
          ((int64_t{FilterTap(problem, r, s)} << few.log) + in_group) *
              problem.channels +
          first;
      words = *reinterpret_cast<const uint4*>(
          static_cast<const char*>(few.filter) + at * 2);
    }
    if (!same(0)) words.x = 0;
    if (!same(2)) words.y = 0;
    if (!same(4)) words.z = 0;
    if (!same(6)) words.w = 0;
    *static_cast<uint4*>(__cvta_shared_to_generic(
        filter + (number * 16 + row) * 128 + ((eight ^ row % 8) << 4))) = words;
  }
  FenceAsyncProxy();
}

// One output by itself.
template <typename T, bool kDgrad>
__device__ float RowBandOutputAt(const RowBandProblem& problem,
                                 const FewGroups& few, int image, int h, int w,
                                 int channel) {
  const TapAxis &taps_h = problem.taps_h, &taps_w = problem.taps_w;
  const int size = 1 << few.log, first = channel >> few.log << few.log;
  const T* const input = static_cast<const T*>(few.input);
  const T* const filter = static_cast<const T*>(few.filter);
  float sum = 0.0f;
  for (int r = 0; r < taps_h.count; ++r) {
    const int y =
        few.first_h + h * problem.tiling.step + r * taps_h.offset_step;
    for (int s = 0; s < taps_w.count; ++s) {
      const int x =
          few.first_w + w * problem.tiling.step + s * taps_w.offset_step;
      const bool inside =
          y >= 0 && y < few.input_height && x >= 0 && x < few.input_width;
      const int64_t pixel =
          (int64_t{image} * few.input_height + y) * few.input_width + x;
      const int64_t row = int64_t{FilterTap(problem, r, s)} << few.log;
      for (int i = 0; i < size; ++i) {
        const float value =
            inside ? static_cast<float>(
                         input[pixel * problem.channels + first + i])
                   : 0.0f;
        const int64_t at =
            kDgrad ? (row + channel - first) * problem.channels + first + i
                   : (row + i) * problem.channels + channel;
        sum = fmaf(value, static_cast<float>(filter[at]), sum);
      }
    }
  }
  return sum;
}

// Whether any sum of an output is nan. What lies between the outputs is not
// looked at: some of it was never written.
template <int kRows>
__device__ __forceinline__ bool HasNan(const float (&acc)[kRows][32],
                                       const RowBandProblem& problem,
                                       int rows) {
  const RowBandTiling& tiling = problem.tiling;
  const int first = threadIdx.x % kWarpgroup / 32 * 16 + threadIdx.x % 32 / 4;
  float poison = 0.0f;
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int pixel = m * 64 + first + half * 8;
      const int row = pixel * problem.reciprocal >> 16;
      const int col = pixel - row * tiling.width;
      float sum = 0.0f;
#pragma unroll
      for (int i = half * 2; i < 32; i += 4) sum += acc[m][i] + acc[m][i + 1];
      if (row < rows && col < tiling.cols) poison += sum;
    }
  }
  return isnan(poison);
}

// Of a warp's pixels in a row band that is written, sums again what is nan.
template <typename T, bool kDgrad>
__device__ __noinline__ void RepairRowBand(const RowBandProblem& problem,
                                           const FewGroups& few,
                                           const RowBandTile& tile, int blocks,
                                           uint32_t band) {
  const RowBandTiling& tiling = problem.tiling;
  const int lane = threadIdx.x % 32;
  const int channel = lane * 2;
  const int rows = min(tile.rows, problem.height - tile.row);
  for (int i = 0; i < blocks * 16; ++i) {
    const int pixel = i / 16 * 64 + threadIdx.x % kWarpgroup / 32 * 16 + i % 16;
    const int row = pixel * problem.reciprocal >> 16;
    const int col = pixel - row * tiling.width;
    if (row >= rows || col >= tiling.cols) continue;
    const int to = row * tiling.cols + col;
    T* const values = static_cast<T*>(__cvta_shared_to_generic(
        band + to * 128 + ((channel / 8 ^ to % 8) << 4)));
    for (int j = channel % 8; j < channel % 8 + 2; ++j) {
      const int own = tile.channel + channel / 8 * 8 + j;
      if (own >= problem.channels || !isnan(static_cast<float>(values[j]))) {
        continue;
      }
      values[j] = T(RowBandOutputAt<T, kDgrad>(problem, few, tile.image,
                                               tile.row + row, col, own));
    }
  }
}

}  // namespace jax_convbatch::hopper
