// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/kernels/row_streaming/row_streaming_plan.h"

#include "cuda/sm90/kernels/row_streaming/row_streaming_shape.h"

namespace jax_convbatch::hopper {
namespace {

int64_t FloorDiv(int64_t a, int64_t b) {
  return a >= 0 ? a / b : -((b - 1 - a) / b);
}

RowStreamingAxis FpropAxis(int64_t out, int64_t taps, int64_t pad) {
  RowStreamingAxis a{};
  a.taps = a.filter = static_cast<int>(taps);
  a.offset = static_cast<int>(pad);
  a.patches = a.size = static_cast<int>(out);
  a.step = a.tap_step = 1;
  return a;
}

// dx of patch p, pixel a, takes tap r of dy at p + t where a + pad - r = t s.
RowStreamingAxis DgradAxis(int64_t in, int64_t taps, int64_t pad,
                           int64_t stride) {
  const int64_t least = -FloorDiv(taps - 1 - pad, stride);
  const int64_t most = FloorDiv(pad + stride - 1, stride);
  RowStreamingAxis a{};
  a.taps = static_cast<int>(most - least + 1);
  a.offset = static_cast<int>(-least);
  a.step = static_cast<int>(stride);
  a.patches = static_cast<int>((in + stride - 1) / stride);
  a.size = static_cast<int>(in);
  a.filter = static_cast<int>(taps);
  a.first = static_cast<int>(pad - stride * least);
  a.tap_step = static_cast<int>(-stride);
  return a;
}

bool IsUndilated(const ConvGeometry& g) {
  return (g.filter_dilation.h == 1 || g.R == 1) &&
         (g.filter_dilation.w == 1 || g.S == 1);
}

std::optional<Plan> MakePlan(const ConvGeometry& g,
                             const RowStreamingShape& shape,
                             int multiprocessors) {
  if (!IsUndilated(g) || shape.rows() == 0 || shape.in_c % 8 != 0 ||
      shape.w.taps > kRowStreamingPixels - 64 + 1 ||
      shape.shared_bytes(shape.stages()) > kMostShared) {
    return std::nullopt;
  }
  return Plan{64, 64, multiprocessors, 0, Path::kRowStreaming, g.taps() > 1};
}

}  // namespace

RowStreamingShape FpropRowStreaming(const ConvGeometry& g) {
  return {FpropAxis(g.P, g.R, g.pad.h),
          FpropAxis(g.Q, g.S, g.pad.w),
          g.H,
          g.W,
          g.C,
          g.K};
}

RowStreamingShape DgradRowStreaming(const ConvGeometry& g) {
  return {DgradAxis(g.H, g.R, g.pad.h, g.stride.h),
          DgradAxis(g.W, g.S, g.pad.w, g.stride.w),
          g.P,
          g.Q,
          g.K,
          g.C};
}

std::optional<Plan> PlanRowStreamingFprop(const ConvGeometry& g,
                                          int multiprocessors) {
  if (g.stride.h != 1 || g.stride.w != 1) return std::nullopt;
  return MakePlan(g, FpropRowStreaming(g), multiprocessors);
}

std::optional<Plan> PlanRowStreamingDgrad(const ConvGeometry& g,
                                          int multiprocessors) {
  return MakePlan(g, DgradRowStreaming(g), multiprocessors);
}

}  // namespace jax_convbatch::hopper
