#include <algorithm>

#include "cuda/direct/depthwise_kind.h"
#include "cuda/direct/depthwise_planes.h"
#include "cuda/direct/depthwise_planes_tiling.h"

namespace jax_convbatch::direct {
namespace {

int CeilDiv(int64_t a, int64_t b) { return static_cast<int>((a + b - 1) / b); }

}  // namespace

PlanesTiling TilePlanes(const Walks& walks, int64_t batch, int workers) {
  const AxisWalk &h = walks.h, &w = walks.w;
  PlanesTiling tiling{};
  const int runs = CeilDiv(w.out_size, Planes::kRun);
  tiling.across = CeilDiv(runs, Planes::kRuns);
  tiling.runs = CeilDiv(runs, tiling.across);
  tiling.segments = Planes::kRuns / tiling.runs;
  // The last run of inputs may lie past the image.
  tiling.input_runs = tiling.runs + 1;
  if (tiling.across == 1) {
    tiling.input_runs = std::clamp(CeilDiv(w.in_size - w.origin, Planes::kRun),
                                   1, tiling.input_runs);
  }
  tiling.copies = CeilDiv(tiling.segments * tiling.input_runs, Planes::kRuns);
  // Steps are taken by as many as the filter has rows.
  const int taps = h.filter_size;
  int64_t least = 0;
  for (int rows = 1 + taps;; rows += taps) {
    const int down = CeilDiv(h.out_size, rows);
    const int groups = CeilDiv(batch * down * tiling.across, tiling.segments);
    const int64_t steps = int64_t{CeilDiv(groups, workers)} * (rows + taps - 1);
    if (least == 0 || steps <= least) {
      least = steps;
      tiling.rows = rows;
      tiling.down = down;
      tiling.groups = groups;
    }
    if (down == 1) return tiling;
  }
}

std::optional<Plan> PlanDepthwisePlanes(Op op, const ConvGeometry& g, Type type,
                                        int multiprocessors) {
  Walks walks;
  if (type == Type::kF32 ||
      !(op == Op::kDgrad ? DgradWalks(g, &walks) : FpropWalks(g, &walks))) {
    return std::nullopt;
  }
  const Kind kind = KindOf(walks, g.C * 2);
  if (kind.taps < 5 || kind.step != 1 || kind.strided()) return std::nullopt;
  Plan plan{};
  plan.channel_tiles = CeilDiv(g.C, Planes::kChannels);
  plan.workers = std::max(1, multiprocessors / plan.channel_tiles);
  const PlanesTiling tiling = TilePlanes(walks, g.N, plan.workers);
  plan.tile_h = tiling.rows;
  plan.tile_w = tiling.runs * Planes::kRun;
  plan.tile_channels = Planes::kChannels;
  plan.workers = std::min(plan.workers, tiling.groups);
  plan.planes = true;
  if (op == Op::kWgrad) plan.workspace = plan.workers * g.taps() * g.C * 4;
  return plan;
}

}  // namespace jax_convbatch::direct
