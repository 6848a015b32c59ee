// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/direct/tiling.h"

#include <algorithm>

namespace jax_convbatch::direct {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The next smaller count of patches that cuts an axis of `all` into a different
// number of tiles.
int64_t NextCount(int64_t all, int64_t count) {
  return count == 1 ? 0 : CeilDiv(all, CeilDiv(all, count - 1));
}

}  // namespace

std::optional<Tiling> ChooseTiling(const Walks& walks,
                                   const TilingRules& rules) {
  const AxisWalk &h = walks.h, &w = walks.w;
  const int classes = h.classes * w.classes;
  const int64_t most_rows = CeilDiv(h.class_size(), rules.patch_rows);
  const int64_t most_cols = CeilDiv(w.class_size(), rules.patch_cols);
  const int share =
      kMultiprocessorBytes / rules.blocks_per_multiprocessor - 1024;
  std::optional<Tiling> best;
  double least = 0;
  for (const int shared :
       {std::min(share, kBlockBytes), kBlockBytes, rules.most_bytes}) {
    const int together =
        shared > kBlockBytes ? 1 : rules.blocks_per_multiprocessor;
    const int64_t blocks = int64_t{rules.multiprocessors} * together;
    for (int64_t a = most_rows; a > 0; a = NextCount(most_rows, a)) {
      for (int64_t b = most_cols; b > 0; b = NextCount(most_cols, b)) {
        const int tile_h = static_cast<int>(a) * rules.patch_rows;
        const int tile_w = static_cast<int>(b) * rules.patch_cols;
        const int64_t inputs = int64_t{h.extent(tile_h)} * w.extent(tile_w);
        const int64_t outputs = int64_t{tile_h} * tile_w * classes;
        // 128: what RowBytes and FlatRowBytes may add to a row.
        const int64_t bytes = inputs * rules.pixel_bytes +
                              h.extent(tile_h) * 128 +
                              outputs * rules.output_bytes;
        const int64_t padded =
            bytes +
            tile_h * (RowBytes(tile_w, rules.output_bytes, rules.patch_rows) -
                      tile_w * rules.output_bytes);
        if (rules.stages * bytes + rules.shared_bytes > shared ||
            rules.stages * padded + rules.shared_bytes >
                std::max(shared, kBlockBytes)) {
          continue;
        }
        const int64_t patches = CeilDiv(a * b, rules.outputs_together) *
                                classes * rules.channel_sets;
        if (rules.most_patches > 0 && patches > rules.most_patches) {
          continue;
        }
        const int64_t tiles = rules.batch * CeilDiv(h.class_size(), tile_h) *
                              CeilDiv(w.class_size(), tile_w);
        const int64_t workers =
            std::clamp<int64_t>(blocks / rules.channel_tiles, 1, tiles);
        const double cost =
            CeilDiv(patches, rules.patches_at_once) * rules.patch_cost +
            inputs * rules.input_cost / rules.patches_at_once;
        // Blocks of an SM slow each other down, and one alone waits for its
        // copies (32x2048 of 4096 channels, 64 taps: 2200 us, 1440 with others;
        // H100).
        const double total =
            cost * CeilDiv(tiles, workers) * (together == 1 ? 1.5 : together);
        if (!best || total < least) {
          least = total;
          best = {tile_h, tile_w, tiles, static_cast<int>(workers)};
        }
      }
    }
    if (best && !rules.any_share) return best;
  }
  return best;
}

int RowBytes(int cols, int pixel_bytes, int apart) {
  const int least = cols * pixel_bytes;
  if (pixel_bytes != 32 && pixel_bytes != 64) return least;
  for (int bytes = least; bytes < least + 128; bytes += 16) {
    if (bytes * apart % 128 == pixel_bytes) return bytes;
  }
  return least;
}

int FlatRowBytes(int cols, int pixel_bytes, const Walks& walks, int tile_w) {
  const int least = cols * pixel_bytes;
  for (int bytes = least; bytes < least + 128; bytes += 16) {
    const int step = tile_w * walks.w.in_step * pixel_bytes;
    if ((bytes * walks.h.in_step - step) % 128 == 0) return bytes;
  }
  return least;
}

}  // namespace jax_convbatch::direct
