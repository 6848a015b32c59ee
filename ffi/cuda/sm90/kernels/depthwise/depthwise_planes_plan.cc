// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cuda/sm80/direct/depthwise_kind.h"
#include "cuda/sm90/kernels/depthwise/depthwise_planes.h"
#include "cuda/sm90/kernels/depthwise/depthwise_planes_tiling.h"

namespace jax_convbatch::direct {
namespace {

int CeilDiv(int64_t a, int64_t b) { return static_cast<int>((a + b - 1) / b); }

// Steps of the worker that takes longest where each has so many rows: it takes
// as many more for each piece of a group as the filter has rows, less one.
int64_t MostSteps(int64_t rows, int64_t height, int64_t all, int halo) {
  int64_t most = 0;
  for (int64_t first = 0; first < all; first += rows) {
    const int64_t last = std::min(first + rows, all) - 1;
    const int64_t pieces = last / height - first / height + 1;
    most = std::max(most, last - first + 1 + pieces * halo);
  }
  return most;
}

// The rows of a worker, of so many at the most.
int ChooseRows(const PlanesTiling& tiling, const AxisWalk& h, int workers) {
  const int64_t all = int64_t{tiling.groups} * h.out_size;
  const int64_t even = CeilDiv(all, workers);
  // Or whole pieces of equal sizes.
  const int64_t pieces = CeilDiv(h.out_size, even);
  int64_t best = even, least = 0;
  for (int64_t rows :
       {even, int64_t{CeilDiv(h.out_size, pieces)},
        int64_t{CeilDiv(h.out_size, std::max<int64_t>(1, pieces - 1))},
        CeilDiv(even, h.out_size) * int64_t{h.out_size}}) {
    if (rows < even) continue;
    const int64_t steps = MostSteps(rows, h.out_size, all, h.filter_size - 1);
    if (least == 0 || steps < least) {
      least = steps;
      best = rows;
    }
  }
  return static_cast<int>(best);
}

}  // namespace

PlanesTiling TilePlanes(const Walks& walks, int64_t batch) {
  const AxisWalk& w = walks.w;
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
  tiling.groups = CeilDiv(batch * tiling.across, tiling.segments);
  return tiling;
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
  const PlanesTiling tiling = TilePlanes(walks, g.N);
  plan.tile_h = ChooseRows(tiling, walks.h, plan.workers);
  plan.tile_w = tiling.runs * Planes::kRun;
  plan.tile_channels = Planes::kChannels;
  plan.workers =
      CeilDiv(int64_t{tiling.groups} * walks.h.out_size, plan.tile_h);
  plan.planes = true;
  if (op == Op::kWgrad) plan.workspace = plan.workers * g.taps() * g.C * 4;
  return plan;
}

}  // namespace jax_convbatch::direct
