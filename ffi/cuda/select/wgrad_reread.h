// SPDX-License-Identifier: Apache-2.0
// What wgrad's blocks read from memory more than once. Host only.
#pragma once

#include <cstdint>

namespace jax_convbatch::hopper {

// How blocks share the tiles of dw, of one group.
struct TileShares {
  int64_t blocks, m_tiles, n_tiles;
  int64_t tap_boxes;     // of a tap's channels
  int64_t filter_boxes;  // of all filter rows
  int64_t tile_boxes;    // of the filter rows of a tile
  bool m_minor;          // tiles: filter rows before output channels
  // Of the first tiles each block does whole ones, all blocks at a time.
  int64_t whole = 0;
  // Whether blocks that do the others end with them, and so keep in step.
  bool ends_with_tiles = false;
};

// Bytes of x and dy beyond reading each once: blocks find in the L2 what those
// in step with them read, and of small arrays what any other did. Blocks whose
// shares cut tiles at other places pass over the pixels at another pace, and
// large arrays come from memory again for each: dw of 131072 steps of
// 1152->1152, one tap, in bf16 616 us by 132 blocks for 54 tiles of 192x128,
// 511 by 108 (H200).
double BytesReadAgain(const TileShares& shares, double x_bytes, double y_bytes);

}  // namespace jax_convbatch::hopper
