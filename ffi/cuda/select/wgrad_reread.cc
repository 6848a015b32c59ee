// SPDX-License-Identifier: Apache-2.0
#include "cuda/select/wgrad_reread.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace jax_convbatch::hopper {
namespace {

// Counts what tiles read that are multiplied in step. A box has channels of a
// tap, or of a row of taps.
class InStep {
 public:
  InStep(const ConvGeometry& g, Type type, const Plan& plan,
         const WgradTiling& tiling)
      : tiling_(tiling),
        tile_boxes_(type == Type::kTf32 && plan.tile_m == kTapRowTile
                        ? 1
                        : plan.tile_m / tiling.block),
        m_minor_(plan.pair == Pair::kNone && tiling.m_tiles > tiling.n_tiles),
        box_bytes_(XBytes(g, type) /
                   static_cast<double>(tiling.channel_blocks)),
        column_bytes_(YBytes(g, type) / static_cast<double>(tiling.n_tiles)),
        seen_(tiling.channel_blocks + tiling.n_tiles, 0) {}

  // Of `count` tiles, `apart` from each other.
  double Bytes(int64_t first, int64_t count, int64_t apart) {
    ++turn_;
    double bytes = 0;
    for (int64_t i = 0; i < count; ++i) bytes += New(first + i * apart);
    return bytes;
  }

 private:
  double New(int64_t tile) {
    const WgradTiling& t = tiling_;
    const int64_t m = m_minor_ ? tile % t.m_tiles : tile / t.n_tiles;
    const int64_t n = m_minor_ ? tile / t.m_tiles : tile % t.n_tiles;
    double bytes = 0;
    // All taps read the same channels, at pixels near each other.
    const int64_t first = m * tile_boxes_;
    const int64_t count =
        std::min({tile_boxes_, t.channel_blocks, t.filter_blocks - first});
    for (int64_t i = 0; i < count; ++i) {
      if (Take((first + i) % t.channel_blocks)) bytes += box_bytes_;
    }
    if (Take(t.channel_blocks + n)) bytes += column_bytes_;
    return bytes;
  }

  bool Take(int64_t what) { return std::exchange(seen_[what], turn_) != turn_; }

  const WgradTiling& tiling_;
  int64_t tile_boxes_;
  bool m_minor_;
  double box_bytes_, column_bytes_;
  std::vector<int> seen_;
  int turn_ = 0;
};

}  // namespace

double BytesReadAgain(const ConvGeometry& g, Type type, const Plan& plan) {
  constexpr double kForgotten = 110e6;  // half of so many bytes are
  if (g.groups > 1) return 0;
  const WgradTiling tiling(g, type, plan.tile_m, plan.tile_n);
  const int64_t blocks = plan.blocks, tiles = tiling.tiles();
  // f32 has no whole tiles beside shares.
  const Sharing sharing =
      Sharing::Of(tiles, blocks, tiling.steps,
                  type != Type::kTf32 && MayDoWhole(plan.tile_m, plan.tile_n));
  if (sharing.splits > 0 && sharing.whole == 0) return 0;
  InStep in_step(g, type, plan, tiling);
  double bytes = 0;
  if (sharing.whole > 0) {
    // One round is much like another.
    bytes += in_step.Bytes(0, blocks, 1) *
             static_cast<double>(sharing.whole / blocks);
    bytes += in_step.Bytes(sharing.whole, tiles - sharing.whole, 1);
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
  const double once = XBytes(g, type) + YBytes(g, type);
  return once / (once + kForgotten) * std::max(0.0, bytes - once);
}

}  // namespace jax_convbatch::hopper
