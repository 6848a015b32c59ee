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
