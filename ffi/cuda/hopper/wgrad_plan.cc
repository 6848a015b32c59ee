// How wgrad runs.
#include <algorithm>

#include "cuda/hopper/conv.h"
#include "cuda/hopper/conv_parts.h"
#include "cuda/hopper/conv_tf32.h"
#include "cuda/hopper/wgrad_tiling.h"

namespace jax_convbatch::hopper {
namespace {

// The bytes of x that some tap reads: a stride may leap over pixels.
double BytesRead(const ConvGeometry& g) {
  return 2.0 * g.x_size() * std::min(1.0, 1.0 * g.R / g.stride.h) *
         std::min(1.0, 1.0 * g.S / g.stride.w);
}

// Microseconds on an H200. The constants are fitted to times of nine layers of
// ResNet-50 at batches 8 and 256. The plans they lead to took 1 % longer than
// the fastest on average, 7 % at most.
double EstimateTime(const ConvGeometry& g, const WgradTiling& tiling,
                    const Plan& plan) {
  constexpr double kCyclesPerMicrosecond = 1755;
  constexpr double kBytesPerCycle = 45;  // of one multiprocessor, from the L2
  constexpr double kCyclesPerStep = 50;
  constexpr double kMemoryRate = 4.2e6;  // bytes a microsecond
  constexpr double kPiecesRate = 4e6;
  constexpr double kPiecesLaunch = 4;
  constexpr double kNotOverlapped = 0.3;

  // A block's steps: the multiplications or the copies, whichever takes longer.
  const double m = std::min<int64_t>(plan.tile_m, tiling.filter_blocks * 64);
  const double cycles = std::max(plan.tile_m * plan.tile_n / 32.0,
                                 (m + plan.tile_n) * 128 / kBytesPerCycle) +
                        kCyclesPerStep;
  const int64_t line = tiling.tiles() * tiling.steps;
  const double steps = static_cast<double>((line - 1) / plan.blocks + 1) *
                       cycles / kCyclesPerMicrosecond;

  // Tiles that share pixels find some of them in the L2: most where blocks
  // start tiles together.
  const double again = plan.blocks % tiling.tiles() == 0 ? 0.2 : 1.2;
  const bool shares_x = tiling.n_tiles > 1 || g.taps() > 1;
  const bool shares_dy = tiling.m_tiles > 1;
  const double memory = (BytesRead(g) * (1 + again * shares_x) +
                         2.0 * g.y_size() * (1 + again * shares_dy)) /
                        kMemoryRate;

  const double pieces =
      plan.workspace == 0 ? 0 : plan.workspace / kPiecesRate + kPiecesLaunch;
  return std::max(steps, memory) + kNotOverlapped * std::min(steps, memory) +
         pieces;
}

}  // namespace

std::optional<Plan> PlanWgrad(const ConvGeometry& g, Type type,
                              int multiprocessors) {
  // x is read as fprop reads it. The bound is the one of a launch's blocks.
  if (!PlanFprop(g, type, multiprocessors) ||
      1.0 * g.taps() * (g.C + 63) * (g.K + 63) >= 1e12) {
    return std::nullopt;
  }
  if (type == Type::kTf32) return PlanWgradTf32(g, multiprocessors);
  constexpr int kShapes[][2] = {
      {256, 128}, {128, 256}, {256, 64}, {128, 128}, {128, 64}};
  Plan best{};
  double least = 0;
  for (const auto& [m, n] : kShapes) {
    const WgradTiling tiling(g, type, m, n);
    const int64_t tiles = tiling.tiles();
    const int64_t all =
        std::min<int64_t>(multiprocessors, tiles * tiling.steps);
    // All blocks that there are, or as many as start tiles together.
    const int64_t together = std::max<int64_t>(1, all / tiles) * tiles;
    for (const int64_t blocks : {all, std::min(all, together)}) {
      Plan plan{m, n, static_cast<int>(blocks), 0};
      if (tiles % blocks != 0) {
        plan.workspace = 2 * blocks * m * n * int64_t{sizeof(float)};
      }
      const double time = EstimateTime(g, tiling, plan);
      if (best.blocks == 0 || time < least) {
        least = time;
        best = plan;
      }
    }
  }
  return best;
}

}  // namespace jax_convbatch::hopper
