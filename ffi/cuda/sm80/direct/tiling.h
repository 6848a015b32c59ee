// SPDX-License-Identifier: Apache-2.0
// The choice of tiles, on the host.
#pragma once

#include <cstdint>
#include <optional>

#include "cuda/sm80/direct/walk.h"

namespace jax_convbatch::direct {

// What a block may have on every GPU that the kernels run on, and what the
// blocks of an SM share on the largest of them.
inline constexpr int kBlockBytes = 99 << 10, kMultiprocessorBytes = 224 << 10;

// What a kernel can do and what it costs, in instructions of a thread.
struct TilingRules {
  int patch_rows, patch_cols;  // outputs that a thread computes at a time
  // Or a warp: outputs of a tile in their order, and ranges of channels.
  int outputs_together = 1, channel_sets = 1;
  int patches_at_once;  // of a block
  double patch_cost;    // of one patch
  double input_cost;    // of one input pixel, for a patch's channels
  int pixel_bytes;      // of a staged input pixel
  int output_bytes;     // and of a staged output pixel, if any
  int shared_bytes;     // besides the tiles
  int64_t batch, channel_tiles;
  int blocks_per_multiprocessor, multiprocessors;
  int stages;
  int most_patches;  // of a tile; 0: any number
  // Of a block that has an SM for itself, where no tile fits that two could
  // share.
  int most_bytes = kBlockBytes;
  // Whether such blocks are also compared with those that share.
  bool any_share = false;
};

struct Tiling {
  int tile_h, tile_w;
  int64_t tiles;  // of the whole batch, for each range of channels
  int workers;
};

// The tile whose makespan is least, or nothing where none fits. Every block has
// `stages` tiles.
std::optional<Tiling> ChooseTiling(const Walks& walks,
                                   const TilingRules& rules);

// Bytes from one row of a tile to the next: at least cols * pixel_bytes, such
// that what lies `apart` rows further begins in other banks, where a pixel
// takes half or a quarter of them. (Two or four such rows are read at once.)
int RowBytes(int cols, int pixel_bytes, int apart);

// The same where pixels are read in their order, 16 bytes of each: such that
// the step from one row's last to the next row's first is like any other.
int FlatRowBytes(int cols, int pixel_bytes, const Walks& walks, int tile_w);

}  // namespace jax_convbatch::direct
