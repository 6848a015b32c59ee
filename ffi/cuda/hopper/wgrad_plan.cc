// How wgrad runs.
#include <algorithm>
#include <vector>

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

// A choice of tiles.
struct Tiles {
  int m, n;
  int64_t m_tiles, n_tiles, steps;
  int64_t rows;  // of m that are formed
  // Of a step on a multiprocessor.
  double multiplier_cycles, shared_cycles, copied_bytes;

  int64_t count() const { return m_tiles * n_tiles; }
  int64_t piece_bytes() const { return rows * n * int64_t{sizeof(float)}; }
};

// Microseconds on an H200. The constants are fitted to times of 22 layers of
// ResNet-50 at batches 8 and 256.
double EstimateTime(const ConvGeometry& g, const Tiles& tiles, const Plan& plan,
                    int multiprocessors) {
  constexpr double kCyclesPerMicrosecond = 1755;
  constexpr double kCopiesPerCycle = 58.8;  // bytes
  constexpr double kPerStep = 87.2, kOneWarpgroup = 25.5;
  constexpr double kMemoryRate = 4.50e6;  // bytes a microsecond
  constexpr double kPiecesRate = 2.08e6;  // written and read
  constexpr double kAddLaunch = 0.351, kAddPiece = 0.00112;
  constexpr double kCluster = 0.586, kClusterBlock = 0.0577;
  constexpr double kClusterByte = 9.61e-6, kWholeByte = 7.33e-6;
  constexpr double kPair = 0.45;
  constexpr double kFixed = 4.35;

  const int64_t count = tiles.count();
  const bool even = plan.blocks % count == 0;
  const bool pair_x = plan.pair == Pair::kX, pair_dy = plan.pair == Pair::kDy;
  const double copied = tiles.copied_bytes - 64.0 * pair_x * tiles.rows -
                        64.0 * pair_dy * tiles.n;
  const double cycles = std::max({tiles.multiplier_cycles, tiles.shared_cycles,
                                  copied / kCopiesPerCycle}) +
                        kPerStep + kOneWarpgroup * (tiles.m == 64);
  const int64_t resident = (plan.blocks - 1) / multiprocessors + 1;
  const double not_overlapped = resident > 1 ? 0.152 : 0.306;
  const double steps =
      static_cast<double>((count * tiles.steps - 1) / plan.blocks + 1) *
      cycles * static_cast<double>(resident) / kCyclesPerMicrosecond;
  // Tiles that share pixels find some of them in the L2: most where blocks
  // start tiles together, or copy for each other.
  const double again = even ? 0.264 : 1.26;
  const double memory =
      (BytesRead(g) * (1 + again * (tiles.n_tiles > 1) * (pair_x ? 0.5 : 1)) +
       2.0 * g.y_size() *
           (1 + again * (tiles.m_tiles > 1) * (pair_dy ? 0.5 : 1))) /
      kMemoryRate;
  const double bytes = static_cast<double>(tiles.piece_bytes());
  double time = std::max(steps, memory) +
                not_overlapped * std::min(steps, memory) + kFixed;
  if (plan.cluster > 1) {
    time += kCluster + kClusterBlock * plan.cluster + kClusterByte * bytes;
  }
  if (plan.pair != Pair::kNone) time += kPair;
  if (plan.workspace == 0) return time + kWholeByte * bytes;
  const double pieces =
      even ? 1.0 * plan.blocks / plan.cluster : 1.0 * plan.blocks + count;
  return time + pieces * bytes / kPiecesRate + kAddLaunch +
         kAddPiece * even * pieces / static_cast<double>(count);
}

Tiles TilesOf(const ConvGeometry& g, int m, int n) {
  constexpr double kSharedBytesPerCycle = 164;
  constexpr double kWritten = 1.06;  // as a share of what reading costs
  const WgradTiling tiling(g, Type::kBf16, m, n);
  const int64_t rows = std::min<int64_t>(m, tiling.filter_blocks * 64);
  // A multiplication reads 64 rows of one side and up to 256 of the other.
  const int longer = std::max(m, n), shorter = std::min(m, n);
  const double reads =
      n == 64 ? m / 64 * (64 + 64) : shorter / 64 * (64 + longer);
  const double copied = static_cast<double>(rows + n) * 128;
  return {m,
          n,
          tiling.m_tiles,
          tiling.n_tiles,
          tiling.steps,
          rows,
          m * n / 32.0,
          (reads * 128 + kWritten * copied) / kSharedBytesPerCycle,
          copied};
}

Tiles HaloTiles(const ConvGeometry& g) {
  constexpr double kPerMultiplication = 270;
  const HaloTiling tiling(g);
  // Rows of padding are not multiplied: two of three rows at either end.
  const double multiplied = 1 - 2.0 / 3 / static_cast<double>(g.P);
  return {kHaloM,
          kHaloN,
          tiling.channel_blocks,
          tiling.n_tiles,
          tiling.steps,
          kHaloM,
          tiling.multiplications() * kPerMultiplication * multiplied,
          0,
          0};
}

// The plans that a choice of tiles has.
std::vector<Plan> PlansOf(const Tiles& tiles, int multiprocessors) {
  const int64_t count = tiles.count();
  const bool halo = tiles.m == kHaloM, small = tiles.m == 64;
  const bool smallest = small && tiles.n == 64;  // two a multiprocessor
  // Those that Run() in wgrad.cu has kernels for.
  const bool pairs = small || (tiles.n == 128 && !halo);
  std::vector<Plan> plans;
  auto add = [&](int64_t blocks, int cluster, Pair pair) {
    Plan plan{tiles.m, tiles.n, static_cast<int>(blocks), 0};
    plan.cluster = cluster;
    plan.pair = pair;
    const bool even = blocks % count == 0;
    if (count % blocks != 0 && !(even && blocks / count == cluster)) {
      plan.workspace = (even ? blocks / cluster : 2 * blocks) * tiles.m *
                       tiles.n * int64_t{sizeof(float)};
    }
    plans.push_back(plan);
  };
  add(std::min<int64_t>(multiprocessors, count * tiles.steps), 1, Pair::kNone);
  for (const int cluster : {1, 2, 4}) {
    for (const Pair pair : {Pair::kNone, Pair::kX, Pair::kDy}) {
      if (pair == Pair::kX && (!pairs || tiles.n_tiles % 2 != 0)) continue;
      if (pair == Pair::kDy && (!pairs || tiles.m_tiles % 2 != 0)) continue;
      const int size = cluster * (pair == Pair::kNone ? 1 : 2);
      if (size > (small ? 4 : 2)) continue;
      // Not every multiprocessor has three others beside it to form a cluster
      // with.
      const int64_t room =
          size <= 2 ? multiprocessors : multiprocessors * 10 / 11;
      auto add_splits = [&](int64_t blocks) {
        const int64_t splits =
            std::min(blocks / count, tiles.steps) / cluster * cluster;
        // Large tiles' sums are worth adding where no pieces are left.
        if (splits == 0 || (!small && cluster > 1 && splits != cluster)) return;
        // A pair's barriers cost more than few steps gain.
        if (pair != Pair::kNone && tiles.steps / splits < 24) return;
        add(count * splits, cluster, pair);
      };
      add_splits(room);
      if (smallest && size == 2 && pair != Pair::kNone) add_splits(2 * room);
    }
  }
  return plans;
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
  std::vector<Tiles> choices;
  constexpr int kShapes[][2] = {{256, 128}, {128, 256}, {256, 64}, {128, 128},
                                {128, 64},  {64, 128},  {64, 64}};
  for (const auto& [m, n] : kShapes) choices.push_back(TilesOf(g, m, n));
  if (HaloTiling::Covers(g, type)) choices.push_back(HaloTiles(g));
  Plan best{};
  double least = 0;
  for (const Tiles& tiles : choices) {
    for (const Plan& plan : PlansOf(tiles, multiprocessors)) {
      const double time = EstimateTime(g, tiles, plan, multiprocessors);
      if (best.blocks == 0 || time < least) {
        least = time;
        best = plan;
      }
    }
  }
  return best;
}

}  // namespace jax_convbatch::hopper
