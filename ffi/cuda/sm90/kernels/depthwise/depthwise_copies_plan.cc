// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cuda/sm80/direct/depthwise_kind.h"
#include "cuda/sm90/kernels/depthwise/copied_tiles.h"
#include "cuda/sm90/kernels/depthwise/depthwise_copies.h"

namespace jax_convbatch::direct {
namespace {

using Tile = CopiedTile;

int64_t Tiles(int64_t size) { return (size + Tile::kSize - 1) / Tile::kSize; }

}  // namespace

std::optional<Plan> PlanDepthwiseCopies(Op op, const ConvGeometry& g, Type type,
                                        int multiprocessors) {
  Walks walks;
  if (op == Op::kWgrad || type == Type::kF32 ||
      !(op == Op::kDgrad ? DgradWalks(g, &walks) : FpropWalks(g, &walks))) {
    return std::nullopt;
  }
  const Kind kind = KindOf(walks, g.C * 2);
  if (kind.taps != Tile::kTaps || kind.step != 1 || kind.strided()) {
    return std::nullopt;
  }
  const int64_t rows = Tiles(walks.h.out_size), cols = Tiles(walks.w.out_size);
  const double pixels = 1.0 * walks.h.out_size * walks.w.out_size;
  // Of large images direct tiles are ahead where a tile's channels are not all
  // there: 150x150 24 at batch 64 52 us, 68 so, 112x112 8 27, 37, 56 78, 85,
  // 56x56 40 18, 20; but 28x28 72 10.8, 8.1, 112x112 72 184, 153 (H200).
  constexpr double kLargeImage = 56 * 56, kLarger = 100 * 100;
  const bool last_eight = g.C > 32 && g.C % 32 == 8;
  if (g.C % 16 == 8 && pixels >= kLargeImage &&
      !(last_eight && pixels >= kLarger)) {
    return std::nullopt;
  }
  const double multiplied = 1.0 * rows * cols * Tile::kSize * Tile::kSize;
  if (multiplied > 1.35 * pixels) return std::nullopt;
  Plan plan{};
  plan.tile_h = plan.tile_w = Tile::kSize;
  plan.tile_channels = Tile::kChannels;
  plan.channel_tiles =
      static_cast<int>((g.C + Tile::kChannels - 1) / Tile::kChannels);
  const int64_t at_once = int64_t{multiprocessors} * Tile::kBlocks;
  plan.workers = static_cast<int>(
      std::clamp<int64_t>(at_once / plan.channel_tiles, 1, g.N * rows * cols));
  plan.copies = true;
  return plan;
}

}  // namespace jax_convbatch::direct
