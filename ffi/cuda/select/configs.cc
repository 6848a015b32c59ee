// SPDX-License-Identifier: Apache-2.0
#include "cuda/select/configs.h"

#include "cuda/select/tile_time.h"
#include "cuda/sm90/kernels/narrow_groups/group_tf32_plan.h"
#include "cuda/sm90/kernels/row_band/row_band_plan.h"
#include "cuda/sm90/kernels/single_wave/single_wave_plan.h"
#include "cuda/sm90/problem/group_width.h"
#include "cuda/sm90/problem/subproblems.h"

namespace jax_convbatch::hopper {
namespace {

// Of one group, those that are reckoned to take the least first; then those of
// 16 bits that the model knows nothing of.
std::vector<Tile> OneGroupTiles(Op op, const ConvGeometry& g, Type type,
                                int multiprocessors) {
  const TiledConv conv(op, g, type);
  std::vector<Tile> tiles;
  if (type != Type::kTf32 && !conv.sums_whole()) {
    tiles = {{64, 64}, {64, 128}, {128, 128}};
    for (const auto& [pixels, channels] : kSplitKTiles) {
      tiles.push_back({pixels, channels, TileKernel::kSingleWave});
    }
    return tiles;
  }
  for (const TimedTile& each : TimedTiles(conv, multiprocessors)) {
    tiles.push_back(each.tile);
  }
  if (type == Type::kTf32 || conv.subs.size() != 1) return tiles;
  for (const int pixels : {kRowBandPixels, kColumnStripPixels}) {
    if (TileRowBand(g, type, conv.in, conv.out, conv.subs[0], pixels)) {
      tiles.push_back({pixels, kRowBandChannels, TileKernel::kRowBand});
    }
  }
  return tiles;
}

// Those of several groups that Run() in group_conv.cu has kernels for.
std::vector<Tile> GroupTiles(Op op, const ConvGeometry& g, Type type,
                             int multiprocessors) {
  if (IsFewChannelGroups(g)) return {};  // the rule's is the only one
  std::vector<Tile> tiles = {{64, 64}, {128, 64}, {256, 64}};
  const bool fprop = op == Op::kFprop;
  const int64_t channels = fprop ? g.group_K() : g.group_C();
  if (GroupWidth(g) == kBoxGroups && channels % 128 == 0) {
    tiles.push_back({128, 128});
  }
  const auto subs =
      fprop ? std::vector{FpropSubproblem(g)} : DgradSubproblems(g);
  if (subs.size() != 1 || GroupUnits(g) > multiprocessors) {
    return tiles;
  }
  const Activations in = fprop ? InputOf(g) : OutputOf(g);
  const Activations out = fprop ? OutputOf(g) : InputOf(g);
  for (const int pixels :
       {kGroupRowBandPixels, kRowBandPixels, kColumnStripPixels}) {
    if (TileGroupRowBand(g, type, in, out, subs[0], pixels)) {
      tiles.push_back({pixels, kRowBandChannels, TileKernel::kRowBand});
    }
  }
  return tiles;
}

std::vector<Tile> Tf32GroupTiles(Op op, const ConvGeometry& g, Type type) {
  std::vector<Tile> tiles;
  if (IsGroupTf32(g, type)) {
    for (int blocks = 1; blocks <= 4; ++blocks) {
      if (TileGroupTf32(g, op == Op::kDgrad, blocks)) {
        tiles.push_back({64 * blocks, kGroupLine});
      }
    }
    return tiles;
  }
  tiles = {{32, 64}, {64, 64}, {256, 64}};
  const int64_t channels = op == Op::kFprop ? g.group_K() : g.group_C();
  if ((channels + 63) / 64 % 2 != 0) return tiles;
  if (op == Op::kDgrad) {
    tiles.push_back({128, 128});
  } else {
    tiles.insert(tiles.end(), {{192, 128}, {256, 128}});
  }
  return tiles;
}

std::vector<Tile> TilesOf(Op op, const ConvGeometry& g, Type type,
                          int multiprocessors) {
  if (g.groups > 1) {
    return type == Type::kTf32 ? Tf32GroupTiles(op, g, type)
                               : GroupTiles(op, g, type, multiprocessors);
  }
  return OneGroupTiles(op, g, type, multiprocessors);
}

}  // namespace

std::string ConfigName(Op op, const Plan& plan) {
  std::string name =
      std::to_string(plan.tile_m) + "x" + std::to_string(plan.tile_n);
  if (op == Op::kWgrad) name += "/" + std::to_string(plan.blocks);
  if (plan.kernel == TileKernel::kHalo) {
    name += "h";
  } else if (plan.kernel == TileKernel::kTransposed) {
    name += "t";
  }
  if (plan.cluster > 1) name += "c" + std::to_string(plan.cluster);
  if (plan.pair != Pair::kNone) name += plan.pair == Pair::kX ? "px" : "py";
  return name;
}

std::vector<Plan> Configs(Op op, const ConvGeometry& g, Type type,
                          int multiprocessors) {
  const std::optional<Plan> rule = PlanPath(op, g, type, multiprocessors);
  if (!rule) return {};
  std::vector<Plan> plans = {*rule};
  // Another plan of wgrad would have other bits, and its rule is fitted well.
  if (op == Op::kWgrad || rule->path != Path::kCopies) return plans;
  const ConvGeometry folded = Fold(op, g, type);
  const TiledConv conv(op, folded, type);
  for (const Tile& tile : TilesOf(op, folded, type, multiprocessors)) {
    if (tile.m == rule->tile_m && tile.n == rule->tile_n &&
        tile.kernel == rule->kernel) {
      continue;
    }
    plans.push_back(*rule);
    Plan& plan = plans.back();
    plan.tile_m = tile.m;
    plan.tile_n = tile.n;
    plan.kernel = tile.kernel;
    plan.workspace = WorkspaceOf(conv, tile);
  }
  return plans;
}

std::optional<Plan> FindConfig(Op op, const ConvGeometry& g, Type type,
                               int multiprocessors, std::string_view name) {
  const std::optional<Plan> rule = PlanPath(op, g, type, multiprocessors);
  if (!rule || name.empty() || ConfigName(op, *rule) == name) return rule;
  for (const Plan& plan : Configs(op, g, type, multiprocessors)) {
    if (ConfigName(op, plan) == name) return plan;
  }
  return std::nullopt;
}

}  // namespace jax_convbatch::hopper
