// How wgrad of f32 runs.
#include <algorithm>

#include "cuda/hopper/conv_tf32.h"
#include "cuda/hopper/wgrad_tiling.h"

namespace jax_convbatch::hopper {
namespace {

// Microseconds on an H200. The constants are fitted to times of 3x3 layers of
// ResNet-50 at batches 8 and 256.
double EstimateTime(const WgradTiling& tiling, const Plan& plan) {
  constexpr double kCyclesPerMicrosecond = 1755;
  constexpr double kCyclesPerStep = 240;
  constexpr double kCyclesPerByte = 0.0085;
  constexpr double kCyclesPerMultiplication = 0.9 / 1024;
  // Where blocks start tiles together, they find each other's pixels in the L2.
  constexpr double kApart = 1.15;
  constexpr double kPiecesRate = 4e6;  // bytes a microsecond
  constexpr double kPiecesLaunch = 4;

  const int lines =
      plan.tile_m == kTapRowTile ? 2 * (32 + kTapReach) : plan.tile_m;
  const double cycles =
      kCyclesPerStep + kCyclesPerByte * (lines + plan.tile_n) * 128 +
      kCyclesPerMultiplication * plan.tile_m * plan.tile_n * tiling.block;
  const int64_t line = tiling.tiles() * tiling.steps;
  const bool together = plan.blocks % tiling.tiles() == 0;
  return static_cast<double>((line - 1) / plan.blocks + 1) * cycles *
             (together ? 1 : kApart) / kCyclesPerMicrosecond +
         (plan.workspace == 0 ? 0
                              : plan.workspace / kPiecesRate + kPiecesLaunch);
}

}  // namespace

Plan PlanWgradTf32(const ConvGeometry& g, int multiprocessors) {
  constexpr int kShapes[][2] = {{256, 128},        {256, 64},
                                {128, 64},         {128, 32},
                                {kTapRowTile, 64}, {kTapRowTile, 128}};
  Plan best{};
  double least = 0;
  for (const auto& [m, n] : kShapes) {
    if (m == kTapRowTile && !TapsShare(FpropPart(g).w)) continue;
    const WgradTiling tiling(g, Type::kTf32, m, n);
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
      const double time = EstimateTime(tiling, plan);
      if (best.blocks == 0 || time < least) {
        least = time;
        best = plan;
      }
    }
  }
  return best;
}

}  // namespace jax_convbatch::hopper
