#include "cuda/direct/depthwise.h"
#include "cuda/direct/depthwise_kind.h"
#include "cuda/direct/tiling.h"

namespace jax_convbatch::direct {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// In instructions of a thread, counted from the inner loops; an input pixel's
// also stands for the memory's time.
double PatchCost(Kind kind, const Walks& walks, int bytes) {
  const double outputs = PatchRows(kind, bytes) * PatchCols(kind);
  const double taps = 1.0 * walks.h.filter_size * walks.w.filter_size /
                      (walks.h.classes * walks.w.classes);
  return outputs * (kind.taps == 0 ? 5 * taps + 6 : 2.6 * taps + 5) + 30;
}

double WgradPatchCost(Kind kind, int64_t taps, int64_t chunks, int bytes) {
  const double outputs = PatchRows(kind, bytes) * PatchCols(kind);
  return chunks * 30 + outputs * (kind.taps == 0 ? 5 : 3.2) * taps;
}

}  // namespace

std::optional<Plan> PlanDepthwise(Op op, const ConvGeometry& g, Type type,
                                  int multiprocessors) {
  Walks walks;
  if (!(op == Op::kDgrad ? DgradWalks(g, &walks) : FpropWalks(g, &walks))) {
    return std::nullopt;
  }
  const int size = type == Type::kF32 ? 4 : 2;
  const Kind kind = KindOf(walks, g.C * size);
  const int64_t taps = g.taps();
  const int64_t channel_tiles = CeilDiv(g.C, kTileChannels);

  TilingRules rules{};
  rules.pixel_bytes = kTileChannels * size;
  rules.multiprocessors = multiprocessors;
  rules.batch = g.N;
  rules.channel_tiles = channel_tiles;
  rules.patches_at_once = kSlots;
  rules.input_cost = 5 * size;
  if (op != Op::kWgrad) {
    if (kind.taps != 0) rules.most_patches = kSlots;
    rules.patch_rows = PatchRows(kind, size);
    rules.patch_cols = PatchCols(kind);
    rules.patch_cost = PatchCost(kind, walks, size);
    rules.shared_bytes = static_cast<int>(taps * kTileChannels * 4);
    rules.stages = PatchStages(kind);
    rules.blocks_per_multiprocessor = PatchBlocks(kind);
  } else {
    // Taps of residue classes, which an input dilation makes, are not kept.
    if (walks.h.classes * walks.w.classes != 1) return std::nullopt;
    const int64_t chunks = CeilDiv(taps, ChunkTaps(kind));
    rules.patch_rows = PatchRows(kind, size);
    rules.patch_cols = PatchCols(kind);
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
  plan.tile_channels = kTileChannels;
  plan.channel_tiles = static_cast<int>(channel_tiles);
  plan.workers = tiling->workers;
  if (op == Op::kWgrad) plan.workspace = plan.workers * taps * g.C * 4;
  return plan;
}

}  // namespace jax_convbatch::direct
