#include "cuda/sm90/kernels/few_channels/strip_tf32_plan.h"

#include <algorithm>
#include <cstdint>

#include "cuda/common/most_shared.h"
#include "cuda/sm90/kernels/cp_async/gather_plan.h"
#include "cuda/sm90/kernels/few_channels/strip_tf32_tiling.h"

namespace jax_convbatch::hopper {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

int Steps(int64_t elements) {
  for (const int steps : kStripTf32Steps) {
    if (elements <= 8 * steps) return steps;
  }
  return 0;
}

}  // namespace

StripTf32Shape::StripTf32Shape(const ConvGeometry& g, bool dgrad)
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
      std::min<int64_t>(kStripTf32Columns, CeilDiv(out_w, 16) * 16);
  SetTile(std::min<int64_t>(kStripTf32Pixels / tile_cols, out_h), tile_cols);
}

void StripTf32Shape::SetTile(int64_t tile_rows, int64_t tile_cols) {
  rows = tile_rows;
  cols = tile_cols;
  strip_row = ((cols - 1) * stride_w + (taps_w - 1) * dilation_w + 1) * in_c;
  strip = ((rows - 1) * stride_h + (taps_h - 1) * dilation_h + 1) * strip_row;
}

int64_t StripTf32Shape::shares() const {
  return CeilDiv(out_c, StripTf32Channels(steps));
}

std::optional<Plan> PlanStripTf32(const ConvGeometry& g, bool dgrad,
                                  int multiprocessors) {
  // Of a multiprocessor's blocks each.
  constexpr int64_t kMostBytes = (226 << 10) / kStripTf32Resident - 1024;
  if (!IsGatherable(g) || g.taps() == 1 ||
      (dgrad && (g.stride.h != 1 || g.stride.w != 1))) {
    return std::nullopt;
  }
  const StripTf32Shape shape(g, dgrad);
  if (shape.steps == 0 || shape.out_c % 4 != 0 ||
      shape.out_c < kStripTf32FewestOutputs ||
      shape.shared_bytes() > kMostBytes) {
    return std::nullopt;
  }
  const int64_t at_once = std::max<int64_t>(
      1, multiprocessors * kStripTf32Resident / shape.shares());
  const int64_t blocks = std::min(shape.tiles(), at_once) * shape.shares();
  return Plan{static_cast<int>(shape.rows * shape.cols),
              static_cast<int>(shape.out_c), static_cast<int>(blocks), 0,
              Path::kStrips};
}

StripTf32Shape StripTf32WgradShape(const ConvGeometry& g) {
  StripTf32Shape shape(g, false);
  const int64_t across = CeilDiv(g.Q, kStripTf32WgradColumns);
  const int64_t cols = CeilDiv(CeilDiv(g.Q, across), 8) * 8;
  int64_t rows = std::min<int64_t>(kStripTf32Pixels / cols, g.P);
  shape.SetTile(rows, cols);
  while (rows > 1 && StripTf32WgradBytes(shape) > kMostShared) {
    shape.SetTile(--rows, cols);
  }
  return shape;
}

std::optional<Plan> PlanStripTf32Wgrad(const ConvGeometry& g,
                                       int multiprocessors) {
  if (!IsGatherable(g) || g.taps() == 1 || g.C > kStripTf32WgradInputs ||
      g.K % 4 != 0 || g.K < kStripTf32FewestOutputs ||
      g.taps() * g.C > kStripTf32WgradElements) {
    return std::nullopt;
  }
  const StripTf32Shape shape = StripTf32WgradShape(g);
  if (StripTf32WgradBytes(shape) > kMostShared) return std::nullopt;
  const int64_t elements = g.taps() * g.C;
  const int64_t tile = StripTf32WgradTile(static_cast<int>(elements));
  const int64_t of_filter = CeilDiv(elements, tile) * CeilDiv(g.K, 64);
  const int64_t splits = std::min(
      shape.tiles(), std::max<int64_t>(1, multiprocessors / of_filter));
  return Plan{static_cast<int>(tile), 64, static_cast<int>(of_filter * splits),
              splits * g.w_size() * 4, Path::kStrips};
}

}  // namespace jax_convbatch::hopper
