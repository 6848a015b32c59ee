// SPDX-License-Identifier: Apache-2.0
// Tiles of the kernels of few_channels_tf32.cuh and
// few_channels_tf32_wgrad.cuh.
#pragma once

namespace jax_convbatch::hopper {

inline constexpr int kFewChannelsTf32Threads = 256,
                     kFewChannelsTf32Resident = 2;

// Eights of a sum that there are kernels for, which are those of so many at
// least.
inline constexpr int kFewChannelsTf32Steps[] = {2, 4, 5, 6, 8};

// Output channels of a block: as many as leave its registers room.
constexpr int FewChannelsTf32Channels(int steps) {
  return steps <= 4 ? 64 : 32;
}

// Outputs of a tile, and at most of a row of it.
inline constexpr int kFewChannelsTf32Pixels = 256, kFewChannelsTf32Columns = 32;

// Fewer fill no columns.
inline constexpr int kFewChannelsTf32FewestOutputs = 16;

// wgrad: outputs at most of a row of a tile; the most input channels, and
// elements of a filter's column, of which a tile of the product has so many.
inline constexpr int kFewChannelsTf32WgradColumns = 64;
inline constexpr int kFewChannelsTf32WgradInputs = 8,
                     kFewChannelsTf32WgradElements = 480;
constexpr int FewChannelsTf32WgradTile(int elements) {
  return elements <= 32 ? 32 : elements <= 80 ? 80 : 160;
}

}  // namespace jax_convbatch::hopper
