// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/kernels/few_channels/few_channels_tf32_plan.h"

#include <algorithm>
#include <cstdint>

#include "cuda/common/most_shared.h"
#include "cuda/sm90/kernels/few_channels/few_channels_plan.h"
#include "cuda/sm90/kernels/few_channels/few_channels_tf32_tiling.h"
#include "cuda/sm90/kernels/few_channels/stem_tf32_plan.h"
#include "cuda/sm90/problem/subproblems.h"

namespace jax_convbatch::hopper {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

int Steps(int64_t elements) {
  for (const int steps : kFewChannelsTf32Steps) {
    if (elements <= 8 * steps) return steps;
  }
  return 0;
}

}  // namespace

FewChannelsTf32Shape::FewChannelsTf32Shape(const ConvGeometry& g, bool dgrad)
    : n(g.N),
      in_h(dgrad ? g.P : g.H),
      in_w(dgrad ? g.Q : g.W),
      in_c(dgrad ? g.K : g.C),
      out_h(dgrad ? g.H : g.P),
      out_w(dgrad ? g.W : g.Q),
      out_c(dgrad ? g.C : g.K),
      taps_h(g.R),
      taps_w(g.S),
      stride_h(g.stride.h),
      stride_w(g.stride.w),
      pad_h(dgrad ? (g.R - 1) * g.filter_dilation.h - g.pad.h : g.pad.h),
      pad_w(dgrad ? (g.S - 1) * g.filter_dilation.w - g.pad.w : g.pad.w),
      dilation_h(g.filter_dilation.h),
      dilation_w(g.filter_dilation.w),
      steps(Steps(g.taps() * in_c)) {
  const int64_t tile_cols =
      std::min<int64_t>(kFewChannelsTf32Columns, CeilDiv(out_w, 16) * 16);
  SetTile(std::min<int64_t>(kFewChannelsTf32Pixels / tile_cols, out_h),
          tile_cols);
}

void FewChannelsTf32Shape::SetTile(int64_t tile_rows, int64_t tile_cols) {
  rows = tile_rows;
  cols = tile_cols;
  strip_row = ((cols - 1) * stride_w + (taps_w - 1) * dilation_w + 1) * in_c;
  band = ((rows - 1) * stride_h + (taps_h - 1) * dilation_h + 1) * strip_row;
}

int64_t FewChannelsTf32Shape::shares() const {
  return CeilDiv(out_c, FewChannelsTf32Channels(steps));
}

std::optional<Plan> PlanFewChannelsTf32(const ConvGeometry& g, bool dgrad,
                                        int multiprocessors) {
  // Of an SM's blocks each.
  constexpr int64_t kMostBytes = (226 << 10) / kFewChannelsTf32Resident - 1024;
  if (!FitsIn32Bits(g) || g.taps() == 1 ||
      (dgrad && (g.stride.h != 1 || g.stride.w != 1)) || IsStem(g, dgrad)) {
    return std::nullopt;
  }
  const FewChannelsTf32Shape shape(g, dgrad);
  if (shape.steps == 0 || shape.out_c % 4 != 0 ||
      shape.out_c < kFewChannelsTf32FewestOutputs ||
      shape.shared_bytes() > kMostBytes) {
    return std::nullopt;
  }
  const int64_t at_once = std::max<int64_t>(
      1, multiprocessors * kFewChannelsTf32Resident / shape.shares());
  const int64_t blocks = std::min(shape.tiles(), at_once) * shape.shares();
  return Plan{static_cast<int>(shape.rows * shape.cols),
              static_cast<int>(shape.out_c), static_cast<int>(blocks), 0,
              Path::kFewChannels};
}

FewChannelsTf32Shape FewChannelsTf32WgradShape(const ConvGeometry& g) {
  FewChannelsTf32Shape shape(g, false);
  const int64_t across = CeilDiv(g.Q, kFewChannelsTf32WgradColumns);
  const int64_t cols = CeilDiv(CeilDiv(g.Q, across), 8) * 8;
  int64_t rows = std::min<int64_t>(kFewChannelsTf32Pixels / cols, g.P);
  shape.SetTile(rows, cols);
  while (rows > 1 && FewChannelsTf32WgradBytes(shape) > kMostShared) {
    shape.SetTile(--rows, cols);
  }
  return shape;
}

std::optional<Plan> PlanFewChannelsTf32Wgrad(const ConvGeometry& given,
                                             int multiprocessors) {
  const ConvGeometry g = BandsOfDy(given) ? DgradAsFprop(given) : given;
  if (!FitsIn32Bits(g) || g.taps() == 1 || g.C > kFewChannelsTf32WgradInputs ||
      g.K % 4 != 0 || g.K < kFewChannelsTf32FewestOutputs ||
      g.taps() * g.C > kFewChannelsTf32WgradElements) {
    return std::nullopt;
  }
  const FewChannelsTf32Shape shape = FewChannelsTf32WgradShape(g);
  if (FewChannelsTf32WgradBytes(shape) > kMostShared) return std::nullopt;
  const int64_t elements = g.taps() * g.C;
  const int64_t tile = FewChannelsTf32WgradTile(static_cast<int>(elements));
  const int64_t of_filter = CeilDiv(elements, tile) * CeilDiv(g.K, 64);
  const int64_t splits = std::min(
      shape.tiles(), std::max<int64_t>(1, multiprocessors / of_filter));
  return Plan{static_cast<int>(tile), 64, static_cast<int>(of_filter * splits),
              splits * g.w_size() * 4, Path::kFewChannels};
}

}  // namespace jax_convbatch::hopper
