// SPDX-License-Identifier: Apache-2.0
#include "cuda/common/most_shared.h"
#include "cuda/sm80/direct/depthwise.h"
#include "cuda/sm80/direct/depthwise_kind.h"
#include "cuda/sm80/direct/tiling.h"

namespace jax_convbatch::direct {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// In instructions of a thread, counted from the inner loops; an input pixel's
// also stands for the memory's time.
double PatchCost(Kind kind, const Walks& walks, int bytes) {
  const double outputs = PatchRows(kind, bytes) * PatchCols(kind, bytes);
  const double taps = 1.0 * walks.h.filter_size * walks.w.filter_size /
                      (walks.h.classes * walks.w.classes);
  return outputs * (kind.strided() ? 4 : 1) *
             (kind.taps == 0 && !IsSliding(walks) ? 5 * taps + 6
                                                  : 2.6 * taps + 5) +
         30;
}

double WgradPatchCost(Kind kind, int64_t taps, int64_t chunks, int bytes) {
  const double outputs = WgradRows(kind, bytes) * WgradCols(kind, bytes);
  return chunks * 30 + outputs * (kind.taps == 0 ? 5 : 3.2) * taps;
}

}  // namespace

std::optional<Plan> PlanDepthwise(Op op, const ConvGeometry& g, Type type,
                                  int multiprocessors, bool hopper) {
  Walks walks;
  if (!(op == Op::kDgrad ? DgradWalks(g, &walks) : FpropWalks(g, &walks))) {
    return std::nullopt;
  }
  const int size = type == Type::kF32 ? 4 : 2;
  const Kind kind = KindOf(walks, g.C * size);
  const int64_t taps = g.taps();
  const int lanes =
      op == Op::kWgrad ? kLanes : PatchLanes(kind, size, walks, g.C);
  const int64_t channel_tiles = CeilDiv(g.C, lanes * 2);

  TilingRules rules{};
  rules.pixel_bytes = lanes * 2 * size;
  rules.multiprocessors = multiprocessors;
  rules.batch = g.N;
  rules.channel_tiles = channel_tiles;
  rules.patches_at_once = kThreads / lanes;
  rules.input_cost = 5 * size;
  if (hopper) rules.most_bytes = hopper::kMostShared;
  if (op != Op::kWgrad) {
    if (kind.strided()) {
      // A thread's patch is one of each of the four classes.
      rules.patches_at_once *= 4;
      rules.most_patches = rules.patches_at_once;
      rules.input_cost *= 4;
    } else if (kind.taps != 0)
      rules.most_patches = kThreads / lanes;
    rules.patch_rows = PatchRows(kind, size);
    rules.patch_cols = PatchCols(kind, size);
    rules.patch_cost = PatchCost(kind, walks, size);
    rules.shared_bytes = static_cast<int>(taps * lanes * 2 * 4);
    rules.any_share = kind.taps == 0;
    rules.stages = PatchStages(kind, size);
    rules.blocks_per_multiprocessor = PatchBlocks(kind, size);
  } else {
    // Taps of residue classes, which an input dilation makes, are not kept.
    if (walks.h.classes * walks.w.classes != 1) return std::nullopt;
    const int64_t chunks = CeilDiv(taps, ChunkTaps(kind));
    rules.patch_rows = WgradRows(kind, size);
    rules.patch_cols = WgradCols(kind, size);
    rules.patch_cost = WgradPatchCost(kind, taps, chunks, size);
    rules.output_bytes = rules.pixel_bytes;
    rules.stages = kWgradStages;
    rules.blocks_per_multiprocessor = WgradBlocks(kind);
    rules.multiprocessors =
        static_cast<int>(CeilDiv(multiprocessors, CeilDiv(chunks, kSlots)));
  }
  const auto tiling = ChooseTiling(walks, rules);
  if (!tiling) return std::nullopt;
  Plan plan{};
  plan.tile_h = tiling->tile_h;
  plan.tile_w = tiling->tile_w;
  plan.tile_channels = lanes * 2;
  plan.channel_tiles = static_cast<int>(channel_tiles);
  plan.workers = tiling->workers;
  if (op == Op::kWgrad) plan.workspace = plan.workers * taps * g.C * 4;
  return plan;
}

}  // namespace jax_convbatch::direct
