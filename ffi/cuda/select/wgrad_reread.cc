// SPDX-License-Identifier: Apache-2.0
#include "cuda/select/wgrad_reread.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace jax_convbatch::hopper {
namespace {

// Counts what tiles read that are multiplied in step.
class InStep {
 public:
  InStep(const TileShares& shares, double x_bytes, double y_bytes)
      : shares_(shares),
        box_bytes_(x_bytes / static_cast<double>(shares.tap_boxes)),
        column_bytes_(y_bytes / static_cast<double>(shares.n_tiles)),
        seen_(shares.tap_boxes + shares.n_tiles, 0) {}

  // Of `count` tiles, `apart` from each other.
  double Bytes(int64_t first, int64_t count, int64_t apart) {
    ++turn_;
    double bytes = 0;
    for (int64_t i = 0; i < count; ++i) bytes += New(first + i * apart);
    return bytes;
  }

 private:
  double New(int64_t tile) {
    const TileShares& s = shares_;
    const int64_t m = s.m_minor ? tile % s.m_tiles : tile / s.n_tiles;
    const int64_t n = s.m_minor ? tile / s.m_tiles : tile % s.n_tiles;
    double bytes = 0;
    // All taps read the same channels, at pixels near each other.
    const int64_t first = m * s.tile_boxes;
    const int64_t count =
        std::min({s.tile_boxes, s.tap_boxes, s.filter_boxes - first});
    for (int64_t i = 0; i < count; ++i) {
      if (Take((first + i) % s.tap_boxes)) bytes += box_bytes_;
    }
    if (Take(s.tap_boxes + n)) bytes += column_bytes_;
    return bytes;
  }

  bool Take(int64_t what) { return std::exchange(seen_[what], turn_) != turn_; }

  const TileShares& shares_;
  double box_bytes_, column_bytes_;
  std::vector<int> seen_;
  int turn_ = 0;
};

}  // namespace

double BytesReadAgain(const TileShares& shares, double x_bytes,
                      double y_bytes) {
  constexpr double kForgotten = 110e6;  // half of so many bytes are
  if (shares.ends_with_tiles && shares.whole == 0) return 0;
  InStep in_step(shares, x_bytes, y_bytes);
  const int64_t blocks = shares.blocks;
  const int64_t tiles = shares.m_tiles * shares.n_tiles;
  double bytes = 0;
  if (shares.whole > 0) {
    // One round is much like another.
    bytes += in_step.Bytes(0, blocks, 1) *
             static_cast<double>(shares.whole / blocks);
    bytes += in_step.Bytes(shares.whole, tiles - shares.whole, 1);
  } else {
    // So many begin at the same place of their tiles, the others elsewhere.
    const int64_t together = std::gcd(blocks, tiles);
    const int64_t apart = tiles / together, starts = blocks / together;
    // A tile is as long as there are starts.
    for (int64_t at = 0; at < apart * starts;) {
      const int64_t tile = at / starts;
      const int64_t end =
          std::min((tile + 1) * starts, (at / apart + 1) * apart);
      bytes += in_step.Bytes(tile, together, apart) *
               static_cast<double>(end - at) / static_cast<double>(starts);
      at = end;
    }
  }
  const double once = x_bytes + y_bytes;
  return once / (once + kForgotten) * std::max(0.0, bytes - once);
}

}  // namespace jax_convbatch::hopper
