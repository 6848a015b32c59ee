// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cuda/sm90/kernels/norm_act/norm_act.h"
#include "cuda/sm90/kernels/norm_act/norm_act_shape.h"

namespace jax_convbatch::hopper {
namespace {

constexpr int64_t kMaxInt = INT32_MAX;
constexpr int64_t kMaxBox = 256;  // of a side, in pixels

// What a tile of so many channels takes, for a block of 64 of what it sums.
// Narrow ones read more of shared memory than they multiply; of 160 half a box
// of the filter is not used.
struct TileCost {
  int n;
  double cost;
};
constexpr TileCost kTileCosts[] = {{128, 128}, {160, 163}, {96, 108}, {64, 90}};

// The channels of a tile by the waves of tiles that they take.
int TileChannels(const ConvGeometry& g, const NormActShape& s,
                 int multiprocessors) {
  const int64_t pixels = int64_t{s.tiles_n} * s.tiles_h * s.tiles_w;
  int best = 0;
  double least = 0;
  for (const TileCost& tile : kTileCosts) {
    const int64_t tiles = pixels * ((g.K + tile.n - 1) / tile.n);
    const double time =
        double((tiles + multiprocessors - 1) / multiprocessors) * tile.cost;
    if (best == 0 || time < least) {
      best = tile.n;
      least = time;
    }
  }
  return best;
}

// Of smaller results a pass and a convolution are as fast, as was measured: of
// images and all gradients, and of sequences.
constexpr int64_t kFewestPixels = 1024, kShortestSequence = 8192;

bool IsLarge(const ConvGeometry& g, const NormActShape& s) {
  const double tiles = double(s.tiles_w) * s.tiles_h / s.images;
  return g.output_pixels() >= kFewestPixels &&
         g.output_pixels() > 0.75 * tiles * kNormActTilePixels;
}

}  // namespace

std::optional<NormActPlan> PlanNormAct(const ConvGeometry& g, Type type,
                                       int multiprocessors) {
  if (type == Type::kTf32 || g.groups != 1 || g.T != 1 || g.D != 1 ||
      g.O != 1 || g.pad.d != 0 || !g.stride.all(1) ||
      !g.input_dilation.all(1) || g.C % 8 != 0 || g.K % 8 != 0 || g.N < 1 ||
      g.P < 1 || g.Q < 1 || g.C < 8 || g.K < 8 || g.H < 1 || g.W < 1) {
    return std::nullopt;
  }
  for (int64_t size : {g.N, g.H, g.W, g.C, g.K, g.P, g.Q, g.N * g.C}) {
    if (size > kMaxInt) return std::nullopt;
  }
  for (int64_t size : {g.R, g.S, g.filter_dilation.h, g.filter_dilation.w}) {
    if (size > kMaxBox) return std::nullopt;
  }
  for (int64_t pad : {g.pad.h, g.pad.w}) {
    if (pad < -kMaxInt / 4 || pad > kMaxInt / 4) return std::nullopt;
  }
  const NormActShape s = NormActShapeOf(g);
  if (s.halo_cols > kMaxBox || s.halo_rows > kMaxBox ||
      s.halo_pixels() > kMaxHaloPixels) {
    return std::nullopt;
  }
  const int n = TileChannels(g, s, multiprocessors);
  const int64_t tiles =
      int64_t{s.tiles_n} * s.tiles_h * s.tiles_w * ((g.K + n - 1) / n);
  if (tiles > kMaxInt / 2) return std::nullopt;
  NormActPlan plan{n, multiprocessors, s.tiles_w * s.tiles_h, false};
  // To activate a halo takes as long as some five taps of 128 channels.
  const bool reuses = s.tile == NormActTile::kRow
                          ? g.taps() >= 5 && g.Q >= kShortestSequence
                          : g.taps() >= 9;
  plan.preferred = reuses && g.C >= 128 && g.K >= 128 && IsLarge(g, s);
  return plan;
}

std::optional<NormActPlan> PlanNormActGradient(const ConvGeometry& g, Type type,
                                               Activation activation,
                                               int multiprocessors) {
  if (activation != Activation::kIdentity && activation != Activation::kRelu &&
      activation != Activation::kGelu && activation != Activation::kSilu) {
    return std::nullopt;
  }
  // Its stride is 1 where fprop's is.
  if (!g.stride.all(1) || !g.input_dilation.all(1)) return std::nullopt;
  const ConvGeometry f = DgradAsFprop(g);
  auto plan = PlanNormAct(f, type, multiprocessors);
  if (plan) {
    plan->preferred = f.C >= 64 && f.K >= 64 && IsLarge(f, NormActShapeOf(f));
  }
  return plan;
}

}  // namespace jax_convbatch::hopper
