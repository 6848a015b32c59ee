// SPDX-License-Identifier: Apache-2.0
// What wgrad's blocks read from memory more than once. Host only.
#pragma once

#include <cstdint>

namespace jax_convbatch::hopper {

// How blocks share dw's tiles.
struct TileShares {
  int64_t blocks;
  int64_t units, m_tiles, n_tiles;  // of a unit, see wgrad_tiling.h
  int64_t tap_boxes;                // boxes of a tap's channels
  int64_t tile_boxes;               // of the filter rows of a tile
  bool m_minor;                     // filter rows before output channels
  // Of the first tiles each block does whole ones, all blocks at a time.
  int64_t whole = 0;
  // Whether blocks that do the others end with them, and start together.
  bool ends_with_tiles = false;

  int64_t tiles() const { return units * m_tiles * n_tiles; }
};

// Bytes of x and dy beyond reading each once: blocks find in the L2 what those
// in step with them read, and of small arrays what any other did. An array that
// blocks read out of step comes from memory again for each: dw of 131072 steps
// of 1152->1152, one tap, in bf16 616 us by 132 blocks for 54 tiles of 192x128,
// 511 by 108 (H200).
double BytesReadAgain(const TileShares& shares, double x_bytes, double y_bytes);

}  // namespace jax_convbatch::hopper
