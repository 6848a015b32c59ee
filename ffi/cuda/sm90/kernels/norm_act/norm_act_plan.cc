// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cuda/sm90/kernels/halo/halo_shape.h"
#include "cuda/sm90/kernels/norm_act/norm_act.h"

namespace jax_convbatch::hopper {
namespace {

// What a tile of so many channels takes, for a block of 64 of what it sums.
// Narrow ones read more of shared memory than they multiply; of 160 half a box
// of the filter is not used.
struct TileCost {
  int n;
  double cost;
};
constexpr TileCost kTileCosts[] = {{128, 128}, {160, 163}, {96, 108}, {64, 90}};

// The channels of a tile by the waves of tiles that they take.
int TileChannels(const ConvGeometry& g, const HaloShape& s,
                 int multiprocessors) {
  int best = 0;
  double least = 0;
  for (const TileCost& tile : kTileCosts) {
    const int64_t tiles = s.tiles * ((g.K + tile.n - 1) / tile.n);
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

bool IsLarge(const ConvGeometry& g, const HaloShape& s) {
  const double tiles = double(s.units_w) * s.units_h / s.halos();
  return g.output_pixels() >= kFewestPixels &&
         g.output_pixels() > 0.75 * tiles * kHaloTilePixels;
}

}  // namespace

std::optional<NormActPlan> PlanNormAct(const ConvGeometry& g, Type type,
                                       int multiprocessors) {
  if (type == Type::kTf32 || g.T != 1 || g.D != 1 || g.O != 1 || g.pad.d != 0 ||
      !IsHalo(g, ElementBytes(type), kMaxNormActHaloPixels)) {
    return std::nullopt;
  }
  const HaloShape s = HaloShapeOf(g);
  const int n = TileChannels(g, s, multiprocessors);
  NormActPlan plan{n, multiprocessors, s.units_w * s.units_h, false};
  // To activate a halo takes as long as some five taps of 128 channels.
  const bool reuses = s.tile == HaloTile::kRow
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
    plan->preferred = f.C >= 64 && f.K >= 64 && IsLarge(f, HaloShapeOf(f));
  }
  return plan;
}

}  // namespace jax_convbatch::hopper
