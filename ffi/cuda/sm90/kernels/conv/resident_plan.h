// SPDX-License-Identifier: Apache-2.0
// Tiles whose weights stay in shared memory: of filters of one tap and few
// input channels, whose layers wait for memory.
#pragma once

#include <cstdint>

namespace jax_convbatch::hopper {

// Stages of weights that shared memory has room for, in tiles of 64x128, and in
// those of 64x256, which have no other kernel.
inline constexpr int kResidentStages = 4, kWideResidentStages = 3;

// Columns of tiles: their number divides that of the blocks that run.
inline constexpr int64_t kMostResidentColumns = 8;

// Whether weights stay in tiles of 64x128 of a layer of one group and one tap,
// in 16 bits, if there are tiles enough.
inline bool HasResidentTiles(int64_t inputs, int64_t outputs) {
  return inputs <= kResidentStages * 64 &&
         outputs <= kMostResidentColumns * 128;
}

// So many that every block has two.
inline bool HasResidentTilesEnough(int64_t tiles, int blocks) {
  return tiles >= 2 * int64_t{blocks};
}

// Of f32 in tiles of so many pixels by 64 or 128 channels: how many stages, and
// whether a layer of one group and one tap has such tiles.
inline constexpr int kResidentTf32Pixels = 128;
constexpr int ResidentTf32Stages(int channels) {
  return channels == 64 ? 8 : 4;
}
inline bool HasResidentTf32Tiles(int64_t inputs, int64_t outputs,
                                 int channels) {
  return inputs <= ResidentTf32Stages(channels) * 32 &&
         outputs <= kMostResidentColumns * channels;
}

// Whether it has tiles of 64x256.
inline bool HasWideResidentTiles(int64_t inputs, int64_t outputs) {
  constexpr int64_t kMostOutputs = 1024;
  return inputs <= kWideResidentStages * 64 && outputs > 128 &&
         outputs <= kMostOutputs;
}

}  // namespace jax_convbatch::hopper
