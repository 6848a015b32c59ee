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
        box_bytes_(x_bytes / static_cast<double>(boxes())),
        column_bytes_(y_bytes / static_cast<double>(columns())),
        seen_(boxes() + columns(), 0) {}

  // Of `count` tiles, `apart` from each other.
  double Bytes(int64_t first, int64_t count, int64_t apart) {
    ++turn_;
    double bytes = 0;
    for (int64_t i = 0; i < count; ++i) bytes += New(first + i * apart);
    return bytes;
  }

 private:
  int64_t boxes() const { return shares_.units * shares_.tap_boxes; }
  int64_t columns() const { return shares_.units * shares_.n_tiles; }

  double New(int64_t tile) {
    const int64_t of_unit = shares_.m_tiles * shares_.n_tiles;
    const int64_t unit = tile / of_unit, place = tile % of_unit;
    const int64_t m =
        shares_.m_minor ? place % shares_.m_tiles : place / shares_.n_tiles;
    const int64_t n =
        shares_.m_minor ? place / shares_.m_tiles : place % shares_.n_tiles;
    double bytes = 0;
    // All taps read the same channels, at pixels near each other.
    const int64_t each = std::min(shares_.tile_boxes, shares_.tap_boxes);
    for (int64_t i = 0; i < each; ++i) {
      const int64_t box = (m * shares_.tile_boxes + i) % shares_.tap_boxes;
      if (Take(unit * shares_.tap_boxes + box)) bytes += box_bytes_;
    }
    if (Take(boxes() + unit * shares_.n_tiles + n)) bytes += column_bytes_;
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
  InStep in_step(shares, x_bytes, y_bytes);
  const int64_t tiles = shares.tiles(), blocks = shares.blocks;
  double bytes = 0;
  for (int64_t tile = 0; tile < shares.whole; tile += blocks) {
    bytes += in_step.Bytes(tile, std::min(blocks, shares.whole - tile), 1);
  }
  if (shares.ends_with_tiles) {
    bytes += in_step.Bytes(shares.whole, tiles - shares.whole, 1);
  } else if (shares.whole == 0) {
    // So many begin at the same step, each of its tile; the others elsewhere.
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
