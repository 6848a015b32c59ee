// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cuda/sm90/kernels/norm_act/norm_act.h"
#include "cuda/sm90/kernels/norm_act/norm_act_shape.h"

namespace jax_convbatch::hopper {
namespace {

constexpr int64_t kMaxInt = INT32_MAX;
constexpr int64_t kMaxBox = 256;  // of a side, in pixels

// The channels of a tile by the waves of tiles that they take. 160 leave half a
// box of the filter unused, and have fewer stages.
int TileChannels(const ConvGeometry& g, const NormActShape& s,
                 int multiprocessors) {
  const int64_t pixels = int64_t{s.tiles_n} * s.tiles_h * s.tiles_w;
  int best = 0;
  double least = 0;
  for (const auto& [n, cost] :
       {std::pair{128, 128.0}, std::pair{160, 163.0}, std::pair{64, 76.0}}) {
    const int64_t tiles = pixels * ((g.K + n - 1) / n);
    const double time =
        double((tiles + multiprocessors - 1) / multiprocessors) * cost;
    if (best == 0 || time < least) {
      best = n;
      least = time;
    }
  }
  return best;
}

}  // namespace

std::optional<NormActPlan> PlanNormAct(const ConvGeometry& g, Type type,
                                       int multiprocessors) {
  if (type == Type::kTf32 || g.groups != 1 || g.T != 1 || g.D != 1 ||
      g.O != 1 || !g.stride.all(1) || !g.input_dilation.all(1) ||
      g.C % 8 != 0 || g.K % 8 != 0 || g.N < 1 || g.P < 1 || g.Q < 1 ||
      g.C < 8 || g.K < 8 || g.H < 1 || g.W < 1) {
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
  const double used =
      double(g.output_pixels()) /
      (double(s.tiles_w) * s.tiles_h * kNormActTilePixels / s.images);
  NormActPlan plan{n, multiprocessors, s.tiles_w * s.tiles_h, true};
  plan.preferred =
      g.C >= 64 && g.K >= 64 && used > 0.75 && g.output_pixels() >= 256;
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
  return PlanNormAct(DgradAsFprop(g), type, multiprocessors);
}

}  // namespace jax_convbatch::hopper
