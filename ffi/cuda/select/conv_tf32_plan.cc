// SPDX-License-Identifier: Apache-2.0
#include "cuda/select/conv_tf32_plan.h"

#include <algorithm>

#include "cuda/sm90/kernels/conv/transposed_plan.h"
#include "cuda/sm90/kernels/single_wave/single_wave_tf32_plan.h"

namespace jax_convbatch::hopper {
namespace {

// The largest tile that still gives every SM work, fitted to times of 3x3
// layers at batches 8 to 1000. Small tiles read too much from the L2 to be
// worth an even share of all SMs.
Plan LargestTf32Tile(const Activations& in, const Activations& out,
                     int64_t groups, const SubproblemAxes& sub, bool dgrad,
                     int multiprocessors) {
  // A tile has channels of one group, of which it should be full.
  const int64_t channels = out.c / groups;
  const bool wide = groups == 1 ? channels > 64 : (channels + 63) / 64 % 2 == 0;
  auto tiles = [&](int m, int n) {
    return (out.n * out.h * out.w + m - 1) / m * groups *
           ((channels + n - 1) / n);
  };
  // What takes as long as one pixel of 128 channels, in units of its own.
  auto length = [&](int m, int n) {
    return ((tiles(m, n) - 1) / multiprocessors + 1) * m * n / 128;
  };
  if (dgrad && wide && tiles(128, 128) >= 2 * multiprocessors &&
      length(128, 128) <= length(256, 64)) {
    return {128, 128, multiprocessors, 0};
  }
  // Tiles that are multiplied together move fewer bytes, but nothing hides how
  // they are stored: for many stages, or fewer of pixels that lie together.
  const int64_t stages = int64_t{sub.h.taps.count} * sub.w.taps.count *
                         ((in.c / groups + 31) / 32);
  const bool dense = sub.h.input_step == 1 && sub.w.input_step == 1;
  const int64_t least = groups > 1 ? 24 : 36;
  if (!dgrad && wide && stages >= (dense ? least : 72) &&
      4 * tiles(192, 128) >= 3 * multiprocessors) {
    const int m = length(192, 128) < length(256, 128) ? 192 : 256;
    if (length(m, 128) <= length(256, 64)) {
      return {m, 128, multiprocessors, 0};
    }
  }
  if (4 * tiles(256, 64) >= 3 * multiprocessors) {
    return {256, 64, multiprocessors, 0};
  }
  if (3 * tiles(64, 64) >= multiprocessors) {
    return {64, 64, multiprocessors, 0};
  }
  return {32, 64, multiprocessors, 0};
}

// Of one group, and in dgrad of stride 1: the tile of TF32 whose waves take the
// least. Fitted to times of 1x1 to 5x5 layers of 32 to 1280 channels.
constexpr int64_t kLongTf32Sum = 16, kLongTf32Fprop = 18;  // stages
Plan BestTf32Tile(const Activations& out, const SubproblemAxes& sub,
                  int64_t stages, bool dgrad, int multiprocessors) {
  // How many times as long as others they take for what they multiply or copy,
  // or 0 where there are none. Of few pixels, fragments of fprop's filter are
  // loaded for less.
  struct Tile {
    int m, n;
    double fprop, dgrad;
  };
  constexpr Tile kTiles[] = {
      {128, 128, 0, 1},      {256, 64, 1, 1},     {256, 128, 1, 0},
      {224, 128, 1.03, 0},   {192, 128, 1, 1},    {160, 128, 1.1, 1},
      {224, 64, 1.03, 1.03}, {192, 64, 1.04, 1},  {160, 64, 1.1, 1.05},
      {64, 64, 1.2, 1.2},    {32, 64, 1.56, 1.56}};
  // As in FullerTile.
  constexpr double kCopied = 55;
  // Of fprop with fewer pixels by 64 channels, where in 256x64 taps share them.
  constexpr double kUnshared = 1.3;
  // Nothing hides how tiles are stored that two warpgroups multiply together,
  // nor how pixels that lie apart come.
  constexpr int64_t kTogetherStages = 32, kApartStages = 72;
  const bool apart = sub.h.input_step > 1 || sub.w.input_step > 1;
  const double together_slower = apart && stages < kApartStages ? 1.1 : 1;
  Plan plan{0, 0, multiprocessors, 0};
  double least = 0;
  for (const Tile& tile : kTiles) {
    const double slower = dgrad ? tile.dgrad : tile.fprop;
    const bool together = tile.n == 128 && tile.m != 128;
    if (slower == 0 || (tile.n == 128 && out.c <= 64) ||
        (together && stages < kTogetherStages)) {
      continue;
    }
    const bool share = !dgrad && tile.n == 64 && TapsShare(sub.w);
    const int64_t columns =
        share && tile.m == 256 ? WithReach(sub).w.count : out.w;
    const int64_t count = (out.n * out.h * columns + tile.m - 1) / tile.m *
                          ((out.c + tile.n - 1) / tile.n);
    const int64_t waves = (count + multiprocessors - 1) / multiprocessors;
    const double time =
        slower * (together ? together_slower : 1) *
        (share && tile.m < 256 ? kUnshared : 1) * static_cast<double>(waves) *
        std::max<double>(tile.m * tile.n, kCopied * (tile.m + tile.n));
    if (plan.tile_m > 0 && time >= least) continue;
    least = time;
    plan.tile_m = tile.m;
    plan.tile_n = tile.n;
  }
  return plan;
}

}  // namespace

Plan FpropTf32Tile(const ConvGeometry& g, const SubproblemAxes& sub,
                   int multiprocessors) {
  const Activations in = InputOf(g), out = OutputOf(g);
  const int64_t stages = g.taps() * ((in.c + 31) / 32);
  const Plan plan =
      g.groups == 1 && stages >= kLongTf32Fprop
          ? BestTf32Tile(out, sub, stages, false, multiprocessors)
          : LargestTf32Tile(in, out, g.groups, sub, false, multiprocessors);
  return g.groups > 1 ? plan
                      : OrSingleWaveTf32(plan, in, out, {sub}, multiprocessors);
}

Plan DgradTf32Tile(const ConvGeometry& g,
                   const std::vector<SubproblemAxes>& subs,
                   int multiprocessors) {
  const Activations in = OutputOf(g), out = InputOf(g);
  const int64_t stages = g.taps() * ((in.c + 31) / 32);
  const Plan plan =
      g.groups == 1 && g.stride.all(1) && stages >= kLongTf32Sum
          ? BestTf32Tile(out, subs[0], stages, true, multiprocessors)
          : LargestTf32Tile(in, out, g.groups, subs[0], true, multiprocessors);
  return g.groups > 1 ? plan
                      : OrSingleWaveTf32(plan, in, out, subs, multiprocessors);
}

Plan OrTransposed(const Plan& plan, const ConvGeometry& g, Type type,
                  int multiprocessors) {
  if (!MayTranspose(g, type)) return plan;
  const SubproblemAxes sub = FpropSubproblem(g);
  Plan transposed = LargestTf32Tile(InputOf(g), OutputOf(g), /*groups=*/1, sub,
                                    /*dgrad=*/true, multiprocessors);
  transposed.workspace = TransposedBytes(g);
  // Each weight has its cost, and each product gains a little, unless tiles of
  // 128 channels that two warpgroups multiply fill the last wave, which read
  // less.
  constexpr int64_t kMostWeights = 600'000, kLeastPixels = 20'000;
  constexpr double kLeastProducts = 7e9;
  const int64_t pixels = g.N * g.output_pixels();
  auto length = [&](const Plan& p) {
    const int64_t tiles =
        (pixels + p.tile_m - 1) / p.tile_m * ((g.K + p.tile_n - 1) / p.tile_n);
    return (tiles + multiprocessors - 1) / multiprocessors * p.tile_m *
           p.tile_n;
  };
  const bool fills =
      plan.tile_n == 128 && (plan.tile_m == 160 || plan.tile_m == 192);
  // A fragment of the filter serves fewer pixels than in tiles of 256.
  const double slower = plan.tile_m == 224 && plan.tile_n == 128 ? 1.06 : 1;
  const bool gains = !fills && (transposed.tile_n == 128 ||
                                (transposed.tile_m == 256 && TapsShare(sub.w)));
  return gains && g.w_size() <= kMostWeights && pixels >= kLeastPixels &&
                 1.0 * pixels * g.w_size() >= kLeastProducts &&
                 length(transposed) <= slower * length(plan)
             ? transposed
             : plan;
}

Plan NotTransposed(const Plan& plan, const ConvGeometry& g, Type type) {
  return IsTransposed(plan) ? PlanFprop(g, type, plan.blocks).value_or(plan)
                            : plan;
}

bool HasTf32Epilogue(const Plan& plan) {
  return plan.tile_n == 64 ? plan.tile_m <= 64 || plan.tile_m == 256
                           : plan.tile_m == 192 || plan.tile_m == 256;
}

Plan WithTf32Epilogue(const ConvGeometry& g, const Plan& plan) {
  return LargestTf32Tile(InputOf(g), OutputOf(g), /*groups=*/1,
                         FpropSubproblem(g),
                         /*dgrad=*/false, plan.blocks);
}

}  // namespace jax_convbatch::hopper
