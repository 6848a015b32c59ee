// SPDX-License-Identifier: Apache-2.0
// How fprop and dgrad run.
#include "cuda/select/conv_plan.h"

#include <algorithm>

#include "cuda/common/left_out.h"
#include "cuda/select/conv_tf32_plan.h"
#include "cuda/select/tile_time.h"
#include "cuda/sm90/kernels/conv/residue_n_plan.h"
#include "cuda/sm90/kernels/narrow_groups/group_tf32_plan.h"
#include "cuda/sm90/kernels/row_band/row_band_plan.h"
#include "cuda/sm90/kernels/single_wave/single_wave_plan.h"
#include "cuda/sm90/problem/conv.h"
#include "cuda/sm90/problem/group_width.h"
#include "cuda/sm90/problem/k_slices.h"
#include "cuda/sm90/problem/subproblems.h"

namespace jax_convbatch::hopper {
namespace {

// What part of a row band, in hundredths, outputs have to be for it to be
// faster than the tiles above, were it of as many steps of the reduction as
// theirs. Fitted to times of layers of 32 to 128 channels. Tiles of up to 32
// channels have half a stage, those of 48 a whole one.
int64_t LeastOfRowBands(const Activations& in, const Activations& out) {
  if (in.c <= 32) return 100;
  return in.c <= 48 && out.c <= 64 ? 55 : 70;
}

// Products of how many pixels take row bands, or 0 where those are no faster.
// Of two kinds, the one that multiplies less which is no output.
int PixelsOfRowBands(const ConvGeometry& g, Type type, const Activations& in,
                     const Activations& out, const SubproblemAxes& sub,
                     int multiprocessors) {
  // Input channels of row bands that are read for each 64 of many output
  // channels: of 48, and of 64 to some where images are large. 56x56 64->96 3x3
  // at batch 128 88 us by 256x96, 68 so; 64->192 123 by 128x192, 108; 28x28
  // 64->192 30, 29; 19x19 64->256 21 by 128x128, 23 (H200).
  constexpr int64_t kMostOfWide = 48, kMostOfSome = 64, kSome = 256;
  constexpr int64_t kLargeImage = 28 * 28;
  const bool some = out.c <= kSome && out.h * out.w >= kLargeImage;
  const int64_t most_of_wide = some ? kMostOfSome : kMostOfWide;
  if (IsLeftOut(Family::kRowBand)) return 0;
  int best = 0;
  int64_t least = 0;
  for (const int pixels : {kColumnStripPixels, kRowBandPixels}) {
    const auto tiling = TileRowBand(g, type, in, out, sub, pixels);
    if (!tiling || (out.c > 64 && in.c > most_of_wide)) continue;
    const int64_t units = out.c > 64 ? 2 : 1;  // at least
    const int64_t tiles = int64_t{tiling->groups} * tiling->strips;
    const int64_t multiplied = tiles * tiling->pixels;
    const int64_t box_steps = (in.c + 63) / 64 * 4;
    if (out.n * tiles * units >= multiprocessors / 2 &&
        100 * out.h * out.w * box_steps >=
            LeastOfRowBands(in, out) * multiplied * RowBandSteps(in) &&
        (best == 0 || multiplied < least)) {
      best = pixels;
      least = multiplied;
    }
  }
  return best;
}

// What is multiplied of an image in row bands of narrow groups.
int64_t GroupRowBandPixels(const RowBandTiling& tiling) {
  return int64_t{tiling.groups} * tiling.strips *
         ((tiling.rows * tiling.width + 63) / 64 * 64);
}

// The same for several groups. Those of narrow groups multiply no zeros.
int PixelsOfGroupRowBands(const ConvGeometry& g, Type type,
                          const Activations& in, const Activations& out,
                          const SubproblemAxes& sub, int multiprocessors) {
  // At stride 2 tiles are faster, where there are any.
  if (IsLeftOut(Family::kRowBand) || GroupUnits(g) > multiprocessors ||
      sub.h.input_step > 1) {
    return 0;
  }
  int best = 0;
  int64_t least = 0;
  for (const int pixels :
       {kGroupRowBandPixels, kColumnStripPixels, kRowBandPixels}) {
    const auto tiling = TileGroupRowBand(g, type, in, out, sub, pixels);
    if (!tiling) continue;
    const bool narrow = pixels == kGroupRowBandPixels;
    const int64_t tiles = int64_t{tiling->groups} * tiling->strips;
    const int64_t multiplied =
        narrow ? GroupRowBandPixels(*tiling) : tiles * pixels;
    if (out.n * tiles * GroupUnits(g) >= multiprocessors / 2 &&
        10 * out.h * out.w >= (narrow ? 4 : 7) * multiplied &&
        (best == 0 || multiplied < least)) {
      best = pixels;
      least = multiplied;
    }
  }
  return best;
}

Plan RowBandPlan(int pixels, int multiprocessors) {
  return WithKernel({pixels, kRowBandChannels, multiprocessors, 0},
                    TileKernel::kRowBand);
}

// Of sums in K slices, for which there are no tiles that are as wide or as
// high: the largest that still gives every SM work, or a cluster's blocks for
// each tile if one round has room for them.
Plan KSliceTile(const Activations& out, int multiprocessors) {
  auto tiles = [&](int m, int n) {
    return (out.n * out.d * out.h * out.w + m - 1) / m * ((out.c + n - 1) / n);
  };
  if (kSumKSlices * tiles(64, 128) <= multiprocessors) {
    return {64, 128, multiprocessors, 0};
  }
  if (out.c <= 64 || 2 * tiles(64, 128) < multiprocessors) {
    return {64, 64, multiprocessors, 0};
  }
  // Half as large where that leaves so much less of the last wave empty: 8x8 of
  // 640 channels at batch 128 takes 123 us by 64x128 and 93 by 128x128 (H100),
  // in five rounds and in three; 4x8x8 320 at batch 16 76 and 49 (H200), in two
  // and in one.
  constexpr double kSlower = 1.6;
  auto length = [&](int m) {
    return static_cast<double>((tiles(m, 128) - 1) / multiprocessors + 1) * m;
  };
  const bool large = kSlower * length(64) >= length(128);
  return {large ? 128 : 64, 128, multiprocessors, 0};
}

// Of one group in 16 bits, one of the tiles that are accepted.
Plan HalfTile(const TiledConv& conv, int multiprocessors,
              bool (*accepts)(const Tile&)) {
  if (conv.subs.size() == 1) {
    const SubproblemAxes& sub = conv.subs[0];
    const int pixels = PixelsOfRowBands(conv.g, conv.type, conv.in, conv.out,
                                        sub, multiprocessors);
    if (pixels > 0) return RowBandPlan(pixels, multiprocessors);
    if (!conv.sums_whole()) return KSliceTile(conv.out, multiprocessors);
  }
  return CheapestTile(conv, multiprocessors, accepts);
}

// Of several groups. Tiles have channels of one wide group, or 64 of narrow
// ones, which multiply little: more pixels a tile save little.
Plan GroupTile(const ConvGeometry& g, Type type, const Activations& in,
               const Activations& out, const SubproblemAxes& sub, bool only,
               int multiprocessors) {
  if (only) {
    const int pixels =
        PixelsOfGroupRowBands(g, type, in, out, sub, multiprocessors);
    if (pixels > 0) return RowBandPlan(pixels, multiprocessors);
  }
  const int64_t pixels = out.n * out.h * out.w;
  const int64_t columns = IsNarrow(GroupWidth(g))
                              ? GroupUnits(g)
                              : g.groups * ((out.c / g.groups + 63) / 64);
  auto tiles = [&](int m) { return (pixels + m - 1) / m * columns; };
  const bool strided = sub.h.output_step > 1 || sub.w.output_step > 1;
  // Of groups that end within a box, fewer boxes are filled up with zeros.
  const int width = GroupWidth(g);
  const int64_t least = strided || width == kAnyGroups ? 4 : 8;
  const bool large =
      (strided || !IsNarrow(width)) && tiles(256) >= least * multiprocessors;
  if (large) return {256, 64, multiprocessors, 0};
  const int m = 4 * tiles(128) >= 3 * multiprocessors ? 128 : 64;
  return {m, 64, multiprocessors, 0};
}

// Groups of few channels have row bands alone, whatever the batch: their bits
// are not those of sm80/direct.
std::optional<Plan> FewTile(const ConvGeometry& g, Type type,
                            const Activations& in, const Activations& out,
                            const SubproblemAxes& sub, int multiprocessors) {
  constexpr int64_t kMostUnits = 64;
  if (IsLeftOut(Family::kRowBand) || GroupUnits(g) > kMostUnits) {
    return std::nullopt;
  }
  const auto tiling =
      TileGroupRowBand(g, type, in, out, sub, kGroupRowBandPixels);
  // Those of small or of few products are multiplied for nothing.
  if (!tiling || 10 * out.h * out.w < 4 * GroupRowBandPixels(*tiling)) {
    return std::nullopt;
  }
  return RowBandPlan(kGroupRowBandPixels, multiprocessors);
}

// Two warpgroups that work together on a tile multiply nothing while they write
// it, which in short sums costs more than it saves. Tiles of 64x256 have no
// such epilogue.
Plan InNarrowTiles(const ConvGeometry& g, Plan plan) {
  constexpr int64_t kShortSum = 4;
  const int64_t stages = g.taps() * ((g.C + 63) / 64);
  if (plan.tile_n == 256 && stages <= kShortSum) {
    plan.tile_n = 128;
    plan.kernel = TileKernel::kPingPong;
  }
  return plan;
}

}  // namespace

Plan HalfPlan(Op op, const ConvGeometry& g, Type type, int multiprocessors) {
  const TiledConv conv(op, g, type);
  return OrCluster(
      HalfTile(conv, multiprocessors, [](const Tile&) { return true; }),
      conv.in, conv.out, conv.subs, multiprocessors);
}

std::optional<Plan> PlanFprop(const ConvGeometry& g, Type type,
                              int multiprocessors) {
  if (IsGroupTf32(g, type)) return PlanGroupTf32(g, false, multiprocessors);
  if (!IsPlain2d(g, type) && !IsGroups2d(g, type)) return std::nullopt;
  const SubproblemAxes sub = FpropSubproblem(g);
  const Activations in = InputOf(g), out = OutputOf(g);
  if (!IsWalkable(type, in, out, sub, MapGroups(g))) return std::nullopt;
  if (type == Type::kTf32) {
    return FpropTf32Tile(g, sub, multiprocessors);
  }
  if (IsFewChannelGroups(g)) {
    return FewTile(g, type, in, out, sub, multiprocessors);
  }
  if (g.groups > 1) {
    return GroupTile(g, type, in, out, sub, true, multiprocessors);
  }
  return HalfPlan(Op::kFprop, g, type, multiprocessors);
}

Plan WithEpilogue(const ConvGeometry& g, Type type, const Plan& plan,
                  const Epilogue& epilogue) {
  if (type == Type::kTf32) return WithTf32Epilogue(g, plan, epilogue);
  const bool bare = plan.tile_n == kBareWidth;
  const bool plain = plan.kernel == TileKernel::kSingleWave ||
                     (plan.kernel != TileKernel::kHalo && IsResidueNTile(plan));
  auto another = [&](bool (*accepts)(const Tile&)) {
    return HalfTile(TiledConv(Op::kFprop, g, type), plan.blocks, accepts);
  };
  if (HasPlainKernels(g, epilogue)) {
    if (!bare) return plan;
    return another([](const Tile& tile) { return tile.n != kBareWidth; });
  }
  if (!bare && !plain) return InNarrowTiles(g, plan);
  return InNarrowTiles(
      g, another([](const Tile& tile) {
        return tile.kernel != TileKernel::kSingleWave &&
               (tile.halo() || (tile.n % 64 == 0 && tile.n != kBareWidth));
      }));
}

std::optional<Plan> PlanDgrad(const ConvGeometry& g, Type type,
                              int multiprocessors) {
  if (IsGroupTf32(g, type)) return PlanGroupTf32(g, true, multiprocessors);
  if (!IsPlain2d(g, type) && !IsGroups2d(g, type)) return std::nullopt;
  const auto subs = DgradSubproblems(g);
  const Activations in = OutputOf(g), out = InputOf(g);
  const bool walkable =
      std::all_of(subs.begin(), subs.end(), [&](const SubproblemAxes& sub) {
        return IsWalkable(type, in, out, sub, MapGroups(g));
      });
  if (subs.empty() || !walkable) return std::nullopt;
  if (type == Type::kTf32) {
    return DgradTf32Tile(g, subs, multiprocessors);
  }
  if (IsFewChannelGroups(g)) {
    if (subs.size() != 1) return std::nullopt;
    return FewTile(g, type, in, out, subs[0], multiprocessors);
  }
  if (g.groups > 1) {
    return GroupTile(g, type, in, out, subs[0], subs.size() == 1,
                     multiprocessors);
  }
  return HalfPlan(Op::kDgrad, g, type, multiprocessors);
}

}  // namespace jax_convbatch::hopper
