// SPDX-License-Identifier: Apache-2.0
// How fprop and dgrad run.
#include <algorithm>

#include "cuda/select/conv_tf32_plan.h"
#include "cuda/sm90/kernels/narrow_groups/group_tf32_plan.h"
#include "cuda/sm90/kernels/row_band/row_band_plan.h"
#include "cuda/sm90/kernels/single_wave/single_wave_plan.h"
#include "cuda/sm90/mainloop/k_slices.h"
#include "cuda/sm90/problem/conv.h"
#include "cuda/sm90/problem/group_width.h"
#include "cuda/sm90/problem/subproblems.h"

namespace jax_convbatch::hopper {
namespace {

// Of the sub-problem with most taps: its pixels, its taps, and the stages of 64
// channels that a tile of it sums.
struct Heaviest {
  int64_t pixels, taps, stages;
};

Heaviest HeaviestOf(const Activations& in, const Activations& out,
                    const SubproblemAxes& sub) {
  const int64_t taps = int64_t{sub.h.taps.count} * sub.w.taps.count;
  return {out.n * sub.h.count * sub.w.count, taps, taps * ((in.c + 63) / 64)};
}

// The largest tile that still gives every SM work.
Plan LargestTile(const Activations& out, const Heaviest& sub, int subs,
                 bool lines, int multiprocessors) {
  auto tiles = [&](int64_t pixels, int m, int n) {
    return (pixels + m - 1) / m * ((out.c + n - 1) / n);
  };
  const int64_t all = out.n * out.h * out.w;
  if (out.c > 64) {
    if (tiles(all, 128, 128) >= 2 * multiprocessors) {
      // Their weights stay in shared memory.
      if (lines && tiles(all, kFullRowTilePixels, kFullRowTileChannels) >=
                       16 * multiprocessors) {
        return {kFullRowTilePixels, kFullRowTileChannels, multiprocessors, 0};
      }
      if (subs == 1 && sub.taps == 1 && sub.stages <= 2) {
        return {64, 128, multiprocessors, 0};
      }
      // 128x256 moves fewer bytes, but its warpgroups are cooperative: worth it
      // for short sums of many tiles, if no wave is wasted.
      auto waves = [&](int n) {
        return (tiles(sub.pixels, 128, n) - 1) / multiprocessors + 1;
      };
      const int64_t wide = waves(256);
      const int64_t least = subs > 1 ? 4 : 2;
      if (2 * wide <= waves(128) && wide >= 12 && sub.stages >= least &&
          sub.stages <= 2 * least) {
        return {128, 256, multiprocessors, 0};
      }
      return {128, 128, multiprocessors, 0};
    }
    if (tiles(all, 64, 128) >= multiprocessors / 2) {
      return {64, 128, multiprocessors, 0};
    }
  } else if (tiles(all, 256, 64) >= 4 * multiprocessors) {
    return {256, 64, multiprocessors, 0};
  }
  return {64, 64, multiprocessors, 0};
}

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
  // channels.
  constexpr int64_t kMostOfWide = 48;
  int best = 0;
  int64_t least = 0;
  for (const int pixels : {kColumnStripPixels, kRowBandPixels}) {
    const auto tiling = TileRowBand(g, type, in, out, sub, pixels);
    if (!tiling || (out.c > 64 && in.c > kMostOfWide)) continue;
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
  if (GroupUnits(g) > multiprocessors || sub.h.input_step > 1) return 0;
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

// Of sums of at least kLongSum stages: tiles that leave less of their channels
// or of the last wave empty than `plan` does. Fitted to times of 3x3 layers of
// 32 to 1280 channels.
constexpr int64_t kLongSum = 8;
Plan FullerTile(const Activations& out, Plan plan, int multiprocessors) {
  struct Tile {
    int m, n;
    double slower = 1;
  };
  constexpr Tile kTiles[] = {{128, 128}, {128, 160}, {256, 96}, {128, 96, 1.3},
                             {256, 64},  {256, 32},  {128, 32}};
  constexpr double kGain = 0.97;
  // In products of a pixel, a channel and a stage; of a pixel or a channel that
  // is copied, which small tiles wait for.
  constexpr double kCopied = 50;
  auto count = [&](const Tile& tile) {
    return (out.n * out.h * out.w + tile.m - 1) / tile.m *
           ((out.c + tile.n - 1) / tile.n);
  };
  auto time = [&](const Tile& tile) {
    const int64_t waves = (count(tile) + multiprocessors - 1) / multiprocessors;
    return tile.slower * static_cast<double>(waves) *
           std::max<double>(tile.m * tile.n, kCopied * (tile.m + tile.n));
  };
  double least = kGain * time({plan.tile_m, plan.tile_n});
  for (const Tile& tile : kTiles) {
    // In less than a wave larger tiles are no faster unless they are fuller.
    const bool fuller = tile.n % 64 == 0
                            ? count(tile) > multiprocessors
                            : out.c % tile.n == 0 || out.c < tile.n;
    if (!fuller || time(tile) >= least) continue;
    least = time(tile);
    plan.tile_m = tile.m;
    plan.tile_n = tile.n;
  }
  return plan;
}

Plan BestTile(const ConvGeometry& g, Type type, const Activations& in,
              const Activations& out, const std::vector<SubproblemAxes>& subs,
              int multiprocessors) {
  const int count = static_cast<int>(subs.size());
  if (count == 1) {
    const int pixels =
        PixelsOfRowBands(g, type, in, out, subs[0], multiprocessors);
    if (pixels > 0) return {pixels, kRowBandChannels, multiprocessors, 0};
  }
  const bool lines = count == 1 && StoresFullRows(in, out, subs[0]);
  const Heaviest sub = HeaviestOf(in, out, subs[0]);
  Plan plan = LargestTile(out, sub, count, lines, multiprocessors);
  const bool k_slices = count == 1 && SumsInKSlices(in, out, subs[0]);
  if (count == 1 && !k_slices && sub.stages >= kLongSum) {
    return FullerTile(out, plan, multiprocessors);
  }
  if (k_slices) {
    // What there is: a cluster's blocks for each tile if one round has room for
    // them, and no tiles that are as wide or as high.
    const int64_t tiles =
        (out.n * out.h * out.w + 63) / 64 * ((out.c + 127) / 128);
    if (kSumKSlices * tiles <= multiprocessors)
      plan.tile_m = 64, plan.tile_n = 128;
    if (plan.tile_n == 256) plan.tile_n = 128;
    if (plan.tile_m == 256) plan.tile_m = 64;
    // Half as large where that leaves so much less of the last wave empty.
    constexpr double kSlower = 1.15;
    auto length = [&](int m) {
      const int64_t count =
          (out.n * out.h * out.w + m - 1) / m * ((out.c + 127) / 128);
      return static_cast<double>((count - 1) / multiprocessors + 1) * m;
    };
    if (plan.tile_m == 128 && kSlower * length(64) < length(128)) {
      plan.tile_m = 64;
    }
  }
  return plan;
}

// Of several groups. Tiles have channels of one wide group, or 64 of narrow
// ones, which multiply little: more pixels a tile save little.
Plan GroupTile(const ConvGeometry& g, Type type, const Activations& in,
               const Activations& out, const SubproblemAxes& sub, bool only,
               int multiprocessors) {
  if (only) {
    const int pixels =
        PixelsOfGroupRowBands(g, type, in, out, sub, multiprocessors);
    if (pixels > 0) return {pixels, kRowBandChannels, multiprocessors, 0};
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
  if (GroupUnits(g) > kMostUnits) return std::nullopt;
  const auto tiling =
      TileGroupRowBand(g, type, in, out, sub, kGroupRowBandPixels);
  // Those of small or of few products are multiplied for nothing.
  if (!tiling || 10 * out.h * out.w < 4 * GroupRowBandPixels(*tiling)) {
    return std::nullopt;
  }
  return Plan{kGroupRowBandPixels, kRowBandChannels, multiprocessors, 0};
}

}  // namespace

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
  return g.groups > 1
             ? GroupTile(g, type, in, out, sub, true, multiprocessors)
             : OrSingleWave(BestTile(g, type, in, out, {sub}, multiprocessors),
                            type, in, out, {sub}, multiprocessors);
}

Plan WithEpilogue(const ConvGeometry& g, Type type, const Plan& plan) {
  return IsSingleWave(type, plan) ? BestTile(g, type, InputOf(g), OutputOf(g),
                                             {FpropSubproblem(g)}, plan.blocks)
                                  : plan;
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
  return g.groups > 1
             ? GroupTile(g, type, in, out, subs[0], subs.size() == 1,
                         multiprocessors)
             : OrSingleWave(BestTile(g, type, in, out, subs, multiprocessors),
                            type, in, out, subs, multiprocessors);
}

}  // namespace jax_convbatch::hopper
