// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/direct/grouped.h"
#include "cuda/sm80/direct/tiling.h"

namespace jax_convbatch::direct {
namespace {

// In cycles of an SM: shared memory gives 128 bytes each.
double ItemCost(const ChannelBlocks& channels, const Walks& walks) {
  const double taps = 1.0 * walks.h.filter_size * walks.w.filter_size /
                      (walks.h.classes * walks.w.classes);
  const double operands = channels.shared
                              ? channels.depth / 8 * (4 + channels.at_once)
                              : channels.at_once * 5;
  return 40 + taps * operands;
}

constexpr int kWarps = kGroupedThreads / 32;
// An SM's share of the memory's bandwidth, in bytes a cycle.
constexpr double kBandwidth = 19;

std::optional<Plan> PlanWgrad(const ConvGeometry& g, int multiprocessors) {
  Walks walks;
  WgradRoles roles;
  if (!FpropWalks(g, &walks) || walks.h.classes * walks.w.classes != 1 ||
      !MakeWgradRoles(g.C, g.K, g.groups, g.taps(), kWarps, &roles)) {
    return std::nullopt;
  }
  TilingRules rules{};
  rules.patch_rows = rules.patch_cols = 1;
  rules.outputs_together = kWgradWarpOutputs;
  rules.channel_sets = roles.count;
  rules.patches_at_once = kWarps;
  // Of shared memory: four cycles an operand.
  rules.patch_cost =
      kWarps * (20.0 + 4.0 * static_cast<double>(g.taps()) / roles.chunks);
  rules.pixel_bytes = GroupedPixelBytes(roles.tile_in());
  rules.output_bytes = GroupedPixelBytes(roles.tile_out());
  rules.input_cost = kWarps * roles.tile_in() * 2 / kBandwidth;
  rules.batch = g.N;
  rules.channel_tiles = (g.groups + roles.tile_groups - 1) / roles.tile_groups;
  rules.stages = kGroupedWgradStages;
  rules.blocks_per_multiprocessor = 2;
  rules.multiprocessors = (multiprocessors + roles.blocks - 1) / roles.blocks;
  const auto tiling = ChooseTiling(walks, rules);
  if (!tiling) return std::nullopt;
  Plan plan{};
  plan.tile_h = tiling->tile_h;
  plan.tile_w = tiling->tile_w;
  plan.tile_channels = roles.tile_groups * roles.out_group;
  plan.channel_tiles = static_cast<int>(rules.channel_tiles);
  plan.workers = tiling->workers;
  plan.workspace = plan.workers * g.w_size() * 4;
  return plan;
}

}  // namespace

std::optional<Plan> PlanGrouped(Op op, const ConvGeometry& g,
                                int multiprocessors) {
  if (op == Op::kWgrad) return PlanWgrad(g, multiprocessors);
  const bool dgrad = op == Op::kDgrad;
  Walks walks;
  ChannelBlocks channels;
  if (!(dgrad ? DgradWalks(g, &walks) : FpropWalks(g, &walks)) ||
      !MakeChannelBlocks(dgrad ? g.K : g.C, dgrad ? g.C : g.K, g.groups,
                         &channels)) {
    return std::nullopt;
  }
  TilingRules rules{};
  rules.patch_rows = rules.patch_cols = 1;
  rules.outputs_together = kWarpOutputs;
  rules.channel_sets = channels.blocks / channels.at_once;
  rules.patches_at_once = kWarps;
  rules.patch_cost = kWarps * ItemCost(channels, walks);
  rules.pixel_bytes = GroupedPixelBytes(channels.tile_in);
  rules.input_cost = kWarps * channels.tile_in * 2 / kBandwidth;
  rules.shared_bytes = GroupedFilterBytes(channels, static_cast<int>(g.taps()));
  rules.batch = g.N;
  rules.channel_tiles = channels.tiles();
  rules.stages = kGroupedStages;
  rules.blocks_per_multiprocessor = GroupedBlocks(channels.shared);
  rules.multiprocessors = multiprocessors;
  const auto tiling = ChooseTiling(walks, rules);
  if (!tiling) return std::nullopt;
  Plan plan{};
  plan.tile_h = tiling->tile_h;
  plan.tile_w = tiling->tile_w;
  plan.tile_channels = channels.blocks * 8;
  plan.channel_tiles = channels.tiles();
  plan.workers = tiling->workers;
  return plan;
}

}  // namespace jax_convbatch::direct
