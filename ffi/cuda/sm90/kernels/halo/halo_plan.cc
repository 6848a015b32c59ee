// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/kernels/halo/halo_plan.h"

#include <cstdint>

#include "cuda/common/left_out.h"

namespace jax_convbatch::hopper {
namespace {

constexpr int64_t kMaxInt = INT32_MAX;
constexpr int64_t kMaxBox = 256;  // of a side, in pixels
constexpr int64_t kLeastChannels = 32;

}  // namespace

bool IsHalo(const ConvGeometry& g, int element_bytes, int most_pixels) {
  if (g.groups != 1 || !g.stride.all(1) || !g.input_dilation.all(1) ||
      g.C * element_bytes % 16 != 0 || g.K * element_bytes % 16 != 0) {
    return false;
  }
  for (int64_t size : {g.N, g.D, g.H, g.W, g.C, g.K, g.O, g.P, g.Q, g.T}) {
    if (size < 1 || size > kMaxInt) return false;
  }
  for (int64_t size : {g.R, g.S, g.filter_dilation.h, g.filter_dilation.w}) {
    if (size < 1 || size > kMaxBox) return false;
  }
  for (int64_t pad : {g.pad.d, g.pad.h, g.pad.w}) {
    if (pad < -kMaxInt / 4 || pad > kMaxInt / 4) return false;
  }
  if (g.N * g.O > kMaxInt || g.T * g.R * g.S > kMaxInt ||
      (g.T - 1) * g.filter_dilation.d > kMaxInt / 4) {
    return false;
  }
  const double pixels = 1.0 * g.N * g.O * (g.P + 15) * (g.Q + 127);
  if (pixels / 64 * ((g.K + 63) / 64.0) > kMaxInt / 2) return false;
  const HaloShape s = HaloShapeOf(g);
  return s.halo_cols <= kMaxBox && s.halo_rows <= kMaxBox &&
         s.halo_pixels() <= most_pixels;
}

bool TakesHalo(Op op, const ConvGeometry& g, Type type) {
  if (IsLeftOut(Family::kHalo) || op == Op::kWgrad || !g.stride.all(1) ||
      !g.input_dilation.all(1) || g.R * g.S < 2) {
    return false;
  }
  const ConvGeometry f = op == Op::kFprop ? g : DgradAsFprop(g);
  return f.C >= kLeastChannels && f.K >= kLeastChannels &&
         IsHalo(f, ElementBytes(type), kMaxLayerHaloPixels);
}

}  // namespace jax_convbatch::hopper
