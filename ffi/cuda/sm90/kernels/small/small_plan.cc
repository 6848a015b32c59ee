// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/kernels/small/small_plan.h"

#include "cuda/sm90/kernels/small/small_shape.h"
#include "cuda/sm90/problem/subproblems.h"

namespace jax_convbatch::hopper {
namespace {

// Blocks of the smallest tiles that run at once; beyond them larger tiles, of
// which a filter serves more.
constexpr int64_t kAtOnce = 4;

std::optional<Plan> MakePlan(const ConvGeometry& g, const SmallShape& shape,
                             int multiprocessors) {
  constexpr int64_t kShared = 110 << 10, kMost = int64_t{1} << 31;
  auto is_small = [](int64_t channels) {
    return channels == 16 || channels == 32;
  };
  const bool sixteen = g.C == 16 && g.K == 16;
  if (!is_small(g.C) || !is_small(g.K) || g.stride.h != 1 || g.stride.w != 1 ||
      (sixteen ? g.taps() == 1 : g.R != 3 || g.S != 3)) {
    return std::nullopt;
  }
  const SmallTiles least = {4, 8}, narrow = {8, 8}, wide = {8, 16};
  if (shape.shared_bytes(wide) > kShared ||
      shape.in_h * shape.in_w * 32 >= kMost ||
      shape.out_h * shape.out_w * 32 >= kMost || shape.tiles(least) >= kMost) {
    return std::nullopt;
  }
  const bool few = sixteen && shape.tiles(least) <= kAtOnce * multiprocessors;
  const SmallTiles tiles = few ? least : shape.out_w <= 8 ? narrow : wide;
  return Plan{tiles.rows * tiles.cols, static_cast<int>(shape.out_c),
              multiprocessors, 0, Path::kSmall};
}

}  // namespace

SmallShape FpropSmall(const ConvGeometry& g) {
  return {g.N,
          g.H,
          g.W,
          g.P,
          g.Q,
          g.C,
          g.K,
          g.R,
          g.S,
          g.pad.h,
          g.pad.w,
          g.filter_dilation.h,
          g.filter_dilation.w};
}

SmallShape DgradSmall(const ConvGeometry& g) {
  const Axes& dilation = g.filter_dilation;
  return {g.N,
          g.P,
          g.Q,
          g.H,
          g.W,
          g.K,
          g.C,
          g.R,
          g.S,
          (g.R - 1) * dilation.h - g.pad.h,
          (g.S - 1) * dilation.w - g.pad.w,
          dilation.h,
          dilation.w};
}

std::optional<Plan> PlanSmallFprop(const ConvGeometry& g, int multiprocessors) {
  return MakePlan(g, FpropSmall(g), multiprocessors);
}

std::optional<Plan> PlanSmallDgrad(const ConvGeometry& g, int multiprocessors) {
  return MakePlan(g, DgradSmall(g), multiprocessors);
}

}  // namespace jax_convbatch::hopper
