// SPDX-License-Identifier: Apache-2.0
// Blocks of the kernel of stem_tf32.cuh.
#pragma once

namespace jax_convbatch::hopper {

inline constexpr int kStemStages = 2;

// Columns of more elements are those of these kernels alone, of so many
// channels: of more, boxes of 32 channels are less than mostly zeros.
inline constexpr int kStemLong = 64, kStemMostChannels = 7;

// Others are, in images whose rows are shorter and fit into shared memory: a
// tile's row band has whole rows, where few_channels_tf32.cuh has parts.
inline constexpr int kStemRow = 4096;

// Eights of a column that there are kernels for.
inline constexpr int kStemSteps[] = {3, 5, 8, 10, 14, 19, 25, 46};

// Those that columns of such a kernel fill.
constexpr int StemFullSteps(int steps) {
  int full = 0;
  for (const int fewer : kStemSteps) {
    if (fewer < steps) full = fewer;
  }
  return full;
}

// 64 output channels of the filter, in boxes of 32 elements of a column.
constexpr int StemBoxes(int steps) { return (steps + 3) / 4; }
constexpr int StemFilterBytes(int steps) { return StemBoxes(steps) * 64 * 128; }

}  // namespace jax_convbatch::hopper
