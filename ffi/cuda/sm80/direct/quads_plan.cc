// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>

#include "cuda/sm80/direct/quads.h"
#include "cuda/sm80/direct/walk.h"

namespace jax_convbatch::direct {
namespace {

constexpr int64_t kMostItems = int64_t{1} << 31;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t Strips(const AxisWalk& w) {
  return w.classes * CeilDiv(w.class_size(), kQuadPixels);
}

std::optional<Plan> PlanWgrad(const ConvGeometry& g, const Walks& walks,
                              int multiprocessors) {
  if (walks.h.classes * walks.w.classes != 1) return std::nullopt;
  constexpr int kLanes = kQuadThreads / kQuadTeams;
  // Blocks that work at the same time on an SM, twice.
  constexpr int64_t kBlocks = 4, kMostBytes = int64_t{64} << 20;
  const int64_t pairs = g.group_C() / 4 * (g.K / 4);
  const int64_t sums = CeilDiv(pairs, kLanes) * g.R * CeilDiv(g.S, kQuadTaps);
  const int64_t rows = g.N * g.P;
  int64_t workers = std::min(CeilDiv(kBlocks * multiprocessors, sums),
                             kMostBytes / (g.w_size() * 4));
  workers = std::clamp<int64_t>(workers, 1, CeilDiv(rows, kQuadTeams));
  // Each team gets as many rows.
  const int64_t each = kQuadTeams * CeilDiv(rows, kQuadTeams * workers);
  workers = CeilDiv(rows, each);
  if (sums * workers >= kMostItems) return std::nullopt;
  Plan plan{};
  plan.tile_h = plan.tile_w = 1;
  plan.tile_channels = 4;
  plan.channel_tiles = static_cast<int>(sums);
  plan.workers = static_cast<int>(workers);
  plan.workspace = workers * g.w_size() * 4;
  plan.quads = true;
  return plan;
}

}  // namespace

std::optional<Plan> PlanQuads(Op op, const ConvGeometry& g,
                              int multiprocessors) {
  const bool dgrad = op == Op::kDgrad;
  Walks walks;
  if (g.group_C() % 4 != 0 || g.group_K() % 4 != 0 ||
      !(dgrad ? DgradWalks(g, &walks) : FpropWalks(g, &walks))) {
    return std::nullopt;
  }
  if (op == Op::kWgrad) return PlanWgrad(g, walks, multiprocessors);
  const int64_t quads = (dgrad ? g.C : g.K) / 4;
  const double items = 1.0 * g.N * walks.h.out_size * Strips(walks.w) *
                       static_cast<double>(quads);
  if (items >= static_cast<double>(kMostItems - kQuadThreads)) {
    return std::nullopt;
  }
  Plan plan{};
  plan.tile_h = 1;
  plan.tile_w = kQuadPixels;
  plan.tile_channels = 4;
  plan.channel_tiles = 1;
  plan.workers =
      static_cast<int>(CeilDiv(static_cast<int64_t>(items), kQuadThreads));
  plan.quads = true;
  return plan;
}

}  // namespace jax_convbatch::direct
