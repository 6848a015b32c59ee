// SPDX-License-Identifier: Apache-2.0
// How wgrad runs.
#include <algorithm>
#include <cmath>
#include <vector>

#include "cuda/common/left_out.h"
#include "cuda/select/volumes.h"
#include "cuda/select/wgrad_reread.h"
#include "cuda/sm90/kernels/conv/conv_tf32.h"
#include "cuda/sm90/kernels/narrow_groups/group_tf32_plan.h"
#include "cuda/sm90/kernels/wgrad/wgrad_short.h"
#include "cuda/sm90/kernels/wgrad/wgrad_short_tiling.h"
#include "cuda/sm90/problem/conv.h"
#include "cuda/sm90/problem/subproblems.h"
#include "cuda/sm90/problem/wgrad_tiling.h"

namespace jax_convbatch::hopper {
namespace {

// Of a tile or a part of it: from so many on barriers, and beginning and
// storing tiles, are little beside them.
constexpr int64_t kManySteps = 24;

// A choice of tiles.
struct Tiles {
  int m, n;
  int64_t units, m_tiles, n_tiles, steps;
  int64_t rows;                            // of m that are formed
  double multiplier_cycles, copied_bytes;  // of a step
  double in_dw = 1;                        // of a tile's sums, those that are
  double zeros = 0;  // bytes that take as long as to fill x's with zeros does

  int64_t count() const { return units * m_tiles * n_tiles; }
  Sharing sharing(int64_t blocks) const {
    return Sharing::Of(count(), blocks, steps, MayDoWhole(m, n));
  }
  bool small() const { return m * n <= kSmallTile; }
  int64_t partial_bytes() const {
    return static_cast<int64_t>(in_dw * rows * n * sizeof(float));
  }
};

// Microseconds on an H200. The constants are fitted to times of 22 layers of
// ResNet-50 at batches 8 and 256; what is said of small tiles, of idle SMs and
// of blocks apart, to 325 layers, most of them random draws.
// `read_again`: bytes, see wgrad_reread.h.
double EstimateTime(const ConvGeometry& g, const Tiles& tiles, const Plan& plan,
                    int multiprocessors, double read_again) {
  constexpr double kCyclesPerMicrosecond = 1755;
  constexpr double kPerStep = 42.9, kOneWarpgroup = 46.8;
  constexpr double kIdleCopies = 0.25;  // of what idle SMs would copy is lost
  const double idle =
      std::max(0.0, 1 - static_cast<double>(plan.blocks) / multiprocessors);
  // Bytes a microsecond. Blocks of small tiles share less of what they copy: dw
  // of 9x44x104 256->3 3x3x3 in bf16 by 128x64 would take 84 us at the rate of
  // large ones, and takes 143. Of several groups, fewer tiles share it, and
  // partials are few.
  const double copy_rate = g.groups > 1 ? 8.5e6
                                        : (tiles.small() ? 7.3e6 : 11.30e6) *
                                              (1 - kIdleCopies * idle);
  const double partials_rate = g.groups == 1 ? 1.36e6 : 2.2e6;
  const double add_launch = g.groups == 1 ? 0.9 : 2.5;
  constexpr double kCopiedForBoth = 0.466;
  constexpr double kMemoryRate = 4.06e6;
  constexpr double kTwoResident = 1.05;  // times as much
  constexpr double kAddPartial = 0.000156;
  constexpr double kExchange = 0.998, kExchangeBlock = 0.0597;
  constexpr double kAddInTwo = 1.82, kAddInTwoByte = 2.01e-6;
  constexpr double kAddInTwoMore = 60e-6;
  constexpr double kWholeByte = 15.3e-6;
  constexpr double kPair = 0.738;
  constexpr double kAddHalves = 0.1;
  constexpr double kHelped = 4;
  constexpr double kLeftOver = 2, kLeftStep = 0.09;
  constexpr double kFixed = 2.79;
  // Steps, copies and memory overlap: the longest counts most.
  constexpr double kOverlap = 4.1;

  const int64_t count = tiles.count();
  const Sharing sharing = tiles.sharing(plan.blocks);
  const bool even = sharing.splits > 0;
  const HaloHelpers helpers = HaloHelpers::Of(g, Type::kBf16, plan);
  const HaloRounds rounds = HaloRounds::Of(g, Type::kBf16, plan);
  const bool pair_x = plan.pair == Pair::kX, pair_dy = plan.pair == Pair::kDy;
  const int64_t resident = (plan.blocks - 1) / multiprocessors + 1;
  const double cycles =
      static_cast<double>(resident) * tiles.multiplier_cycles + kPerStep +
      kOneWarpgroup * (tiles.m == 64 && tiles.n == 64);
  const int64_t of_block = helpers.count > 0 ? helpers.own_steps
                           : rounds.whole > 0
                               ? rounds.whole / plan.blocks * tiles.steps
                           : even ? sharing.whole / plan.blocks * tiles.steps +
                                        (tiles.steps - 1) / sharing.splits + 1
                                  : (count * tiles.steps - 1) / plan.blocks + 1;
  // Times as long that blocks take that are in step with few others.
  constexpr double kApart = 1.1, kHaloApart = 1.05;
  const bool together = even || count % plan.blocks == 0 || g.groups > 1 ||
                        helpers.count > 0 || rounds.whole > 0;
  const double apart = together ? 1 : tiles.m == kHaloM ? kHaloApart : kApart;
  const double steps =
      apart * static_cast<double>(of_block) * cycles / kCyclesPerMicrosecond;
  const double shared =
      64.0 * static_cast<double>(pair_x * tiles.rows + pair_dy * tiles.n);
  const double copies =
      apart * static_cast<double>(count * tiles.steps) *
      (tiles.copied_bytes + tiles.zeros - (1 - kCopiedForBoth) * shared) /
      copy_rate;
  // Tiles that share pixels find some of them in the L2: most where blocks
  // start tiles together, or copy for each other.
  const double again = even ? 0.3 : 0.574;
  auto read = [&](double bytes, int64_t sharing, bool paired) {
    if (sharing == 1 || (paired && sharing == 2)) return bytes;
    return bytes * (1 + again * (paired ? 0.5 : 1));
  };
  const double memory = (read(XBytes(g, Type::kBf16), tiles.n_tiles, pair_x) +
                         read(YBytes(g, Type::kBf16), tiles.m_tiles, pair_dy)) /
                            (kMemoryRate * (resident > 1 ? kTwoResident : 1)) +
                        read_again / kMemoryRate;
  const double bytes = static_cast<double>(tiles.partial_bytes());
  double time =
      std::pow(std::pow(steps, kOverlap) + std::pow(copies, kOverlap) +
                   std::pow(memory, kOverlap),
               1 / kOverlap) +
      kFixed;
  if (plan.cluster > 1) {
    time += tiles.small() ? (kExchange + kExchangeBlock * plan.cluster) *
                                static_cast<double>(resident)
                          : kAddInTwo + kAddInTwoByte * bytes;
    // At the clock that the power limit leaves, 256 x 128 tiles took more.
    if (tiles.m != kHaloM) time += kAddInTwoMore * std::max(0.0, bytes - 65536);
  }
  if (plan.pair != Pair::kNone) time += kPair;
  if (tiles.m == 64 && tiles.n == 128) time += kAddHalves;
  if (helpers.count > 0) return time + kHelped + kWholeByte * bytes;
  if (rounds.left > 0) {
    const double pixels = static_cast<double>(g.N * g.P * g.Q);
    time += kLeftOver + kLeftStep * pixels / (64 * rounds.splits());
  }
  if (plan.workspace == 0) return time + kWholeByte * bytes;
  const int64_t split_tiles = count - sharing.whole;
  const int64_t partials =
      even ? split_tiles * sharing.splits / plan.cluster : plan.blocks + count;
  return time + static_cast<double>(partials) * bytes / partials_rate +
         add_launch +
         kAddPartial * even * static_cast<double>(partials) /
             static_cast<double>(split_tiles);
}

// Of narrow groups, only what lies on a tile's diagonal.
double InDw(const ConvGeometry& g) {
  const int width = IsFew16Bit(g, Type::kBf16) ? kFewWidth : GroupWidth(g);
  return IsNarrow(width) ? 1.0 * width / kBoxGroups : 1;
}

Tiles TilesOf(const ConvGeometry& g, int m, int n) {
  // Of 2x32x104, 3x3x3 1024, a third of the boxes of x are zeros: 256x128 in
  // pairs 725 us, 128x256, which copies half as many of x, 475 (H200).
  constexpr double kZeros = 4;
  // Warpgroups of small tiles wait for copies.
  constexpr double kInTurns = 0.322, kHalves = 0.4;
  const WgradTiling tiling(g, Type::kBf16, m, n);
  const int64_t rows = std::min<int64_t>(m, tiling.filter_blocks * 64);
  return {m,
          n,
          tiling.units,
          tiling.m_tiles,
          tiling.n_tiles,
          tiling.steps,
          rows,
          m * n / 32.0 *
              (m == 64 && n == 128   ? kInTurns
               : m == 128 && n == 64 ? kHalves
                                     : 1),
          static_cast<double>(rows + n) * 128,
          InDw(g),
          static_cast<double>(rows) * 128 * kZeros * PaddingOfVolume(g)};
}

// Runs that are padding along depth are left out, but not all blocks have some:
// it takes as long.
Tiles HaloTiles(const ConvGeometry& g) {
  constexpr double kPerMultiplication = 278;
  const HaloTiling tiling(g, Type::kBf16);
  // Rows of padding are not multiplied: two of three rows at either end.
  const double multiplied = 1 - 2.0 / 3 *
                                    static_cast<double>(g.filter_dilation.h) /
                                    static_cast<double>(g.P);
  return {kHaloM,
          kHaloN,
          1,
          tiling.depth_taps * tiling.channel_blocks,
          tiling.n_tiles,
          tiling.steps,
          kHaloM,
          tiling.multiplications() * kPerMultiplication * multiplied,
          0,
          InDw(g)};
}

// The plans that a choice of tiles has.
std::vector<Plan> PlansOf(const ConvGeometry& g, const Tiles& tiles,
                          int multiprocessors) {
  const int64_t count = tiles.count();
  const bool small = tiles.small();
  const bool smallest = tiles.m == 64 && tiles.n == 64;  // two an SM
  // Those that RunTiles() has kernels for.
  const bool pairs = g.groups == 1 && tiles.n == 128;
  std::vector<Plan> plans;
  auto add = [&](int64_t blocks, int cluster, Pair pair) {
    Plan plan{tiles.m, tiles.n, static_cast<int>(blocks), 0};
    plan.cluster = cluster;
    plan.pair = pair;
    const Sharing sharing = tiles.sharing(blocks);
    if (count % blocks != 0 && sharing.splits != cluster &&
        HaloRounds::Of(g, Type::kBf16, plan).whole == 0) {
      const int64_t partials = sharing.splits > 0 ? (count - sharing.whole) *
                                                        sharing.splits / cluster
                                                  : 2 * blocks;
      plan.workspace = partials * tiles.m * tiles.n * int64_t{sizeof(float)};
    }
    plans.push_back(plan);
  };
  add(std::min<int64_t>(multiprocessors, count * tiles.steps), 1, Pair::kNone);
  if (g.groups == 1 && tiles.m == kHaloM && count > multiprocessors) {
    // As many whole tiles for each block, where that leaves few without one.
    const int64_t each = (count - 1) / multiprocessors + 1;
    if (count % each == 0 && 25 * count >= 24 * each * multiprocessors) {
      add(count / each, 1, Pair::kNone);
    }
  }
  // Of small tiles pairs do one each. Fewer blocks than there are SMs, where
  // they leave over what they share evenly, or nothing; but not of few steps,
  // where it takes longer to begin tiles and to store them: dw of 8x8
  // 1280->1280 at batch 2 by 600 whole tiles 35 us, by shares 25 (H200).
  const int64_t fewest =
      tiles.steps < kManySteps ? multiprocessors : multiprocessors * 7 / 8 + 1;
  for (int64_t blocks = multiprocessors;
       !small && blocks >= fewest && count > blocks; --blocks) {
    const bool even = tiles.sharing(blocks).splits > 0;
    const bool halo = tiles.m == kHaloM;
    if (blocks < multiprocessors && g.groups == 1 && !halo &&
        (even || count % blocks == 0)) {
      add(blocks, 1, Pair::kNone);
    }
    if (pairs && even && tiles.n_tiles % 2 == 0 && blocks % 2 == 0) {
      add(blocks, 1, Pair::kX);
    }
  }
  for (const int cluster : {1, 2, 4, 8}) {
    for (const Pair pair : {Pair::kNone, Pair::kX, Pair::kDy}) {
      const bool paired = pair != Pair::kNone;
      if (paired && !pairs) continue;
      if (pair == Pair::kX && tiles.n_tiles % 2 != 0) continue;
      if (pair == Pair::kDy && tiles.m_tiles % 2 != 0) continue;
      const int size = cluster * (paired ? 2 : 1);
      if (size > (!small ? 2 : paired ? 4 : 8)) continue;
      // Not every SM has three others beside it to form a cluster with.
      const int64_t room =
          size <= 2 ? multiprocessors : multiprocessors * 10 / 11;
      auto add_splits = [&](int64_t blocks) {
        const int64_t splits =
            std::min(blocks / count, tiles.steps) / cluster * cluster;
        // Large tiles' sums are added in two. Where partials are left all the
        // same it pays only if one sum has as many as there are.
        const bool one_sum = count == 1 && tiles.m == kHaloM;
        if (splits == 0 ||
            (!small && cluster > 1 && splits != cluster && !one_sum)) {
          return;
        }
        // A pair's barriers cost more than few steps gain.
        if (paired && tiles.steps / splits < kManySteps) return;
        add(count * splits, cluster, pair);
      };
      add_splits(room);
      if (smallest && size > 1) add_splits(2 * room);
    }
  }
  return plans;
}

struct Shape {
  int m, n;
};

// Those that wgrad.cu has kernels for. A group's tiles have output channels of
// one group, or 64 of several narrow ones.
std::vector<Shape> ShapesOf(const ConvGeometry& g) {
  if (g.groups == 1) {
    return {{256, 128}, {128, 256}, {192, 128}, {128, 128},
            {128, 64},  {64, 128},  {64, 64}};
  }
  std::vector<Shape> shapes = {{384, 64}, {192, 64}, {128, 64}, {64, 64}};
  if (GroupWidth(g) == kBoxGroups && g.group_K() % 128 == 0) {
    shapes.push_back({128, 128});
  }
  return shapes;
}

}  // namespace

std::optional<Plan> PlanWgrad(const ConvGeometry& g, Type type,
                              int multiprocessors) {
  // x is read as fprop reads it. The bound is the one of a launch's blocks.
  const bool walks =
      Is3d(g) ? IsPlain(g, type) && IsWalkable3d(type, InputOf(g), OutputOf(g),
                                                 FpropSubproblem(g))
      : IsGroupTf32(g, type) || IsWgradAlone(g, type)
          ? IsWalkable(type, InputOf(g), OutputOf(g), FpropSubproblem(g))
          : PlanFprop(g, type, multiprocessors).has_value();
  if (!walks || 1.0 * g.taps() * (g.C + 63) * (g.K + 63) >= 1e12) {
    return std::nullopt;
  }
  if (type == Type::kTf32) return PlanWgradTf32(g, multiprocessors);
  std::vector<Tiles> choices;
  for (const auto& [m, n] : ShapesOf(g)) {
    const Tiles tiles = TilesOf(g, m, n);
    // Not those that are half empty: the smallest is in the list.
    if (2 * tiles.rows <= m && m > 64) continue;
    choices.push_back(tiles);
  }
  if (!IsLeftOut(Family::kWgradHalo) && HaloTiling::Covers(g, type))
    choices.push_back(HaloTiles(g));
  Plan best{};
  double least = 0;
  for (const Tiles& tiles : choices) {
    for (const Plan& plan : PlansOf(g, tiles, multiprocessors)) {
      if (IsShort(g, type, plan)) continue;  // below
      double time = EstimateTime(g, tiles, plan, multiprocessors, 0);
      if (best.blocks != 0 && time >= least) continue;
      const double again =
          tiles.m == kHaloM ? 0 : BytesReadAgain(g, type, plan);
      if (again > 0) {
        time = EstimateTime(g, tiles, plan, multiprocessors, again);
        if (best.blocks != 0 && time >= least) continue;
      }
      least = time;
      best = plan;
    }
  }
  for (const auto& [plan, time] : PlansOfWgradShort(g, type, multiprocessors)) {
    if (best.blocks == 0 || time < least) {
      least = time;
      best = plan;
    }
  }
  return best;
}

}  // namespace jax_convbatch::hopper
