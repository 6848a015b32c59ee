// SPDX-License-Identifier: Apache-2.0
// How wgrad of f32 runs.
#include <algorithm>
#include <cmath>

#include "cuda/common/left_out.h"
#include "cuda/select/volumes.h"
#include "cuda/select/wgrad_reread.h"
#include "cuda/sm90/kernels/conv/conv_tf32.h"
#include "cuda/sm90/problem/wgrad_tiling.h"

namespace jax_convbatch::hopper {
namespace {

// Microseconds on an H200. The constants are fitted to times of 221 layers, of
// ResNet-50 and of random draws.
constexpr double kCyclesPerMicrosecond = 1755;
constexpr double kPartialsRate = 3.4e6;  // bytes a microsecond
constexpr double kPartialsLaunch = 2.8;
constexpr double kMemoryRate = 4e6;

double PartialsTime(const Plan& plan) {
  return plan.workspace == 0 ? 0
                             : plan.workspace / kPartialsRate + kPartialsLaunch;
}

// `read_again`: bytes, see wgrad_reread.h.
double EstimateTime(const ConvGeometry& g, const WgradTiling& tiling,
                    const Plan& plan, double read_again) {
  constexpr double kCyclesPerStep = 180;
  constexpr double kCyclesPerByte = 0.0154;
  constexpr double kCyclesPerMultiplication = 0.64 / 1024;
  // Of bytes of x that TMA fills with zeros: channels past the last, and
  // padding along depth.
  constexpr double kCyclesPerZero = 0.035;
  // Where blocks start tiles together, they find each other's pixels in the L2.
  constexpr double kApart = 1.2;
  // Steps and memory overlap: the longer counts most.
  constexpr double kOverlap = 4;

  const bool tap_rows = plan.tile_m == kTapRowTile;
  const int lines = tap_rows ? 2 * (32 + kTapReach) : plan.tile_m;
  const int64_t loaded =
      tap_rows ? lines
               : std::min<int64_t>(lines, tiling.filter_blocks * tiling.block);
  const int64_t inputs = WgradUnits(g, Type::kTf32).inputs;
  const int64_t boxes = (inputs + tiling.block - 1) / tiling.block;
  const double filled = static_cast<double>(inputs) /
                        static_cast<double>(boxes * tiling.block) *
                        (1 - PaddingOfVolume(g));
  const double cycles =
      kCyclesPerStep + kCyclesPerByte * (lines + plan.tile_n) * 128 +
      kCyclesPerZero * (1 - filled) * static_cast<double>(loaded) * 128 +
      kCyclesPerMultiplication * plan.tile_m * plan.tile_n * tiling.block;
  const int64_t line = tiling.tiles() * tiling.steps;
  const bool together = plan.blocks % tiling.tiles() == 0;
  const double steps = static_cast<double>((line - 1) / plan.blocks + 1) *
                       cycles * (together ? 1 : kApart) / kCyclesPerMicrosecond;
  const double memory =
      (XBytes(g, Type::kTf32) + YBytes(g, Type::kTf32) + read_again) /
      kMemoryRate;
  return std::pow(std::pow(steps, kOverlap) + std::pow(memory, kOverlap),
                  1 / kOverlap) +
         PartialsTime(plan);
}

// The same of tiles of all nine taps.
double EstimateHaloTime(const ConvGeometry& g, const HaloTiling& tiling,
                        const Plan& plan) {
  constexpr double kCyclesPerMultiplication = 690;
  constexpr double kCyclesPerRun = 2000;
  constexpr double kApart = 1.03;

  // Rows of padding are not multiplied: two of three rows at either end.
  const auto rows = static_cast<double>(g.P);
  const double cycles = tiling.multiplications() * kCyclesPerMultiplication *
                            (1 - 2.0 / 3 / rows) +
                        kCyclesPerRun / rows;
  const int64_t line = tiling.tiles() * tiling.steps;
  const bool together = plan.blocks % tiling.tiles() == 0;
  return static_cast<double>((line - 1) / plan.blocks + 1) * cycles *
             (together ? 1 : kApart) / kCyclesPerMicrosecond +
         PartialsTime(plan);
}

}  // namespace

Plan PlanWgradTf32(const ConvGeometry& g, int multiprocessors) {
  constexpr int kShapes[][2] = {{256, 128},        {256, 64},
                                {128, 64},         {128, 32},
                                {kTapRowTile, 64}, {kTapRowTile, 128}};
  Plan best{};
  double least = 0;
  // Calls add(blocks) for all blocks that there are, and for as many as start
  // tiles together.
  auto for_blocks = [&](int64_t tiles, int64_t steps, auto add) {
    const int64_t all = std::min<int64_t>(multiprocessors, tiles * steps);
    const int64_t together = std::max<int64_t>(1, all / tiles) * tiles;
    for (const int64_t blocks : {all, std::min(all, together)}) {
      add(static_cast<int>(blocks));
    }
  };
  auto take = [&](const Plan& plan, double time) {
    if (best.blocks != 0 && time >= least) return;
    least = time;
    best = plan;
  };
  for (const auto& [m, n] : kShapes) {
    if (m == kTapRowTile && !TapsShare(FpropSubproblem(g).w)) continue;
    // A tile has output channels of one group, or of one set of narrow ones;
    // it is filled up where no tile is full.
    const int64_t outputs = WgradUnits(g, Type::kTf32).outputs;
    if (g.groups > 1 && outputs % kBoxGroups == 0 && outputs % n != 0) {
      continue;
    }
    const WgradTiling tiling(g, Type::kTf32, m, n);
    for_blocks(tiling.tiles(), tiling.steps, [&, m = m, n = n](int blocks) {
      Plan plan{m, n, blocks, 0};
      if (tiling.tiles() % blocks != 0) {
        plan.workspace = int64_t{2} * blocks * m * n * sizeof(float);
      }
      double time = EstimateTime(g, tiling, plan, 0);
      if (best.blocks != 0 && time >= least) return;
      const double again = BytesReadAgain(g, Type::kTf32, plan);
      if (again > 0) time = EstimateTime(g, tiling, plan, again);
      take(plan, time);
    });
  }
  if (IsLeftOut(Family::kWgradHalo) || !HaloTiling::Covers(g, Type::kTf32)) {
    return best;
  }
  const HaloTiling tiling(g, Type::kTf32);
  for_blocks(tiling.tiles(), tiling.steps, [&](int blocks) {
    Plan plan{kHaloM, kHaloN, blocks, 0};
    if (tiling.tiles() % blocks != 0) {
      const int64_t partials = blocks % tiling.tiles() == 0 ? 1 : 2;
      plan.workspace = partials * blocks * kHaloM * kHaloN * sizeof(float);
    }
    take(plan, EstimateHaloTime(g, tiling, plan));
  });
  return best;
}

}  // namespace jax_convbatch::hopper
