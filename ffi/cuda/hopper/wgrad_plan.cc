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

// What a choice of tiles costs.
struct Costs {
  double step_cycles;  // of one multiprocessor
  int64_t tiles, steps;
  bool shares_x, shares_dy;  // by several tiles
  int64_t piece_bytes;       // that are written, of one block
};

// Microseconds on an H200. The constants are fitted to times of 23 layers of
// ResNet-50 at batches 8 and 256: the plans they lead to took 0.4 % longer than
// the fastest on average, 4 % at most.
double EstimateTime(const ConvGeometry& g, const Costs& costs, int blocks) {
  constexpr double kCyclesPerMicrosecond = 1755;
  constexpr double kMemoryRate = 4.4e6;   // bytes a microsecond
  constexpr double kPiecesRate = 2.39e6;  // written and read
  constexpr double kAddLaunch = 1.29;
  constexpr double kNotOverlapped = 0.333;
  constexpr double kFixed = 4.43;

  const int64_t line = costs.tiles * costs.steps;
  const double steps = static_cast<double>((line - 1) / blocks + 1) *
                       costs.step_cycles / kCyclesPerMicrosecond;
  // Tiles that share pixels find some of them in the L2: most where blocks
  // start tiles together.
  const double again = blocks % costs.tiles == 0 ? 0.356 : 4.95;
  const double memory = (BytesRead(g) * (1 + again * costs.shares_x) +
                         2.0 * g.y_size() * (1 + again * costs.shares_dy)) /
                        kMemoryRate;
  const int64_t count =
      blocks % costs.tiles == 0 ? blocks : blocks + costs.tiles;
  const double pieces =
      costs.tiles % blocks == 0
          ? 0
          : static_cast<double>(count * costs.piece_bytes) / kPiecesRate +
                kAddLaunch;
  return std::max(steps, memory) + kNotOverlapped * std::min(steps, memory) +
         pieces + kFixed;
}

Costs CostsOf(const ConvGeometry& g, int m, int n) {
  constexpr double kSharedBytesPerCycle = 110;
  constexpr double kPerStep = 76.8;
  const WgradTiling tiling(g, Type::kBf16, m, n);
  const int64_t rows = std::min<int64_t>(m, tiling.filter_blocks * 64);
  // A multiplication reads 64 rows of the shorter side and all of the longer.
  const int longer = std::max(m, n), shorter = std::min(m, n);
  const double reads = m == 256 && n == 64 ? 4 * (64 + 64)
                       : n == 64           ? 2 * (64 + 64)
                                           : shorter / 64 * (64 + longer);
  const double copies = rows + n;
  const double cycles = std::max(
      m * n / 32.0, (reads + 0.625 * copies) * 128 / kSharedBytesPerCycle);
  return {cycles + kPerStep,  tiling.tiles(),
          tiling.steps,       tiling.n_tiles > 1,
          tiling.m_tiles > 1, rows * n * int64_t{sizeof(float)}};
}

Costs HaloCosts(const ConvGeometry& g) {
  constexpr double kPerMultiplication = 287;
  constexpr double kPerStep = 76.8;
  const HaloTiling tiling(g);
  // Rows of padding are not multiplied: two of three rows at either end.
  const double multiplied = 1 - 2.0 / 3 / static_cast<double>(g.P);
  return {tiling.multiplications() * kPerMultiplication * multiplied + kPerStep,
          tiling.tiles(),
          tiling.steps,
          tiling.n_tiles > 1,
          tiling.channel_blocks > 1,
          int64_t{kHaloM} * kHaloN * int64_t{sizeof(float)}};
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
  Plan best{};
  double least = 0;
  auto consider = [&](int m, int n, const Costs& costs) {
    const int64_t all =
        std::min<int64_t>(multiprocessors, costs.tiles * costs.steps);
    // As many blocks as start tiles together, or all that there are.
    const int64_t together =
        std::max<int64_t>(1, all / costs.tiles) * costs.tiles;
    for (const int64_t blocks : {std::min(all, together), all}) {
      Plan plan{m, n, static_cast<int>(blocks), 0};
      if (costs.tiles % blocks != 0) {
        const int64_t slots = blocks % costs.tiles == 0 ? blocks : 2 * blocks;
        plan.workspace = slots * m * n * int64_t{sizeof(float)};
      }
      const double time = EstimateTime(g, costs, plan.blocks);
      if (best.blocks == 0 || time < least) {
        least = time;
        best = plan;
      }
    }
  };
  constexpr int kShapes[][2] = {
      {256, 128}, {128, 256}, {256, 64}, {128, 128}, {128, 64}};
  for (const auto& [m, n] : kShapes) consider(m, n, CostsOf(g, m, n));
  if (HaloTiling::Covers(g, type)) consider(kHaloM, kHaloN, HaloCosts(g));
  return best;
}

}  // namespace jax_convbatch::hopper
