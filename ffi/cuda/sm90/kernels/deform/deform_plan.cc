// SPDX-License-Identifier: Apache-2.0
// Whether and how deform_kernel.cuh runs a deformable convolution.
#include <algorithm>

#include "cuda/sm90/kernels/deform/deform.h"

namespace jax_convbatch::hopper {
namespace {

// Blocks that share a tile's reduction, so that a few long tiles fill a GPU.
// Without N: where the reduction is cut changes bits.
int Split(int64_t stages, int tile_n) {
  return tile_n == 256 && stages >= 16 ? 2 : 1;
}

}  // namespace

std::optional<DeformPlan> PlanDeformFprop(const ConvGeometry& g, Type type,
                                          int64_t offset_groups,
                                          int multiprocessors) {
  constexpr int64_t kMost = INT32_MAX;
  const int64_t vector = 16 / ElementBytes(type);
  const int64_t chunk = 128 / ElementBytes(type);
  const int64_t group_C = g.group_C(), group_K = g.K / g.groups;
  const int64_t offset_C = g.C / offset_groups;
  const bool several = g.groups > 1 || offset_groups > 1;
  if (g.D != 1 || g.T != 1 || g.O != 1 || group_C % vector != 0 ||
      group_K % vector != 0 ||
      (several && (group_C % chunk != 0 || offset_C % chunk != 0))) {
    return std::nullopt;
  }
  const int64_t stages = g.taps() * ((group_C + chunk - 1) / chunk);
  // Indices of pixels and tiles, and strides of the filter's tensor map.
  if (g.N * g.input_pixels() > kMost / 2 || g.w_size() > kMost ||
      g.N * g.output_pixels() > kMost / 2 || stages > kMost / 4 ||
      g.input_pixels() * g.C > kMost) {
    return std::nullopt;
  }
  const int tile_n = group_K <= 64 ? 64 : group_K <= 128 ? 128 : 256;
  const int64_t tiles = (g.N * g.output_pixels() + kDeformPixels - 1) /
                        kDeformPixels * g.groups *
                        ((group_K + tile_n - 1) / tile_n);
  if (tiles > kMost / 4) return std::nullopt;
  const int split = Split(stages, tile_n);
  return DeformPlan{
      tile_n, split,
      static_cast<int>(std::min<int64_t>(tiles, multiprocessors / split)) *
          split};
}

}  // namespace jax_convbatch::hopper
