// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>

#include "cuda/common/left_out.h"
#include "cuda/sm90/kernels/fused_backward/masked_backward.h"

namespace jax_convbatch::hopper {

namespace {

// Elements of dz. Of smaller ones dgrad and wgrad find dz in the L2.
constexpr int64_t kLeastMasked = 1 << 24;

}  // namespace

bool HasMaskedBackward(const ConvGeometry& g, Type type) {
  return !IsLeftOut(Family::kMaskedBackward) && type != Type::kTf32 &&
         g.K % kMaskedRows == 0 && g.C % kMaskedColumns == 0 && g.K <= 2048 &&
         g.C <= 2048 && g.y_size() > kLeastMasked;
}

int MaskedSplits(const ConvGeometry& g, int multiprocessors) {
  const int64_t steps = (g.N * g.output_pixels() + 63) / 64;
  const int64_t tiles = g.C / kMaskedColumns * (g.K / kMaskedRows);
  const int64_t splits = std::clamp<int64_t>(multiprocessors / tiles, 1, steps);
  return static_cast<int>(splits > 1 ? splits / 2 * 2 : 1);
}

int64_t MaskedBackwardWorkspace(const ConvGeometry& g, int multiprocessors) {
  return MaskedSplits(g, multiprocessors) * (g.C + 1) * g.K * 4;
}

}  // namespace jax_convbatch::hopper
