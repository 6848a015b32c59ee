// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/kernels/patches/patch_plan.h"

#include <numeric>

namespace jax_convbatch::hopper {
namespace {

constexpr int kTileM = 128;
constexpr int64_t kStoreUnit = 8;  // elements: 16 bytes

// Columns that tiles of `width` multiply for a patch, used or not.
int64_t Columns(const ConvGeometry& g, int64_t width) {
  const int64_t together = width / (g.S * g.C);
  return (g.R + together - 1) / together * width;
}

}  // namespace

std::optional<Plan> PlanPatchDgrad(const ConvGeometry& g, int multiprocessors) {
  constexpr int64_t kNarrow = 64, kWide = 192;
  const int64_t run = g.S * g.C;
  if (g.K % 8 != 0 || run % 2 != 0 || run > kWide || g.taps() == 1 ||
      g.Q % (kStoreUnit / std::gcd(run, kStoreUnit)) != 0) {
    return std::nullopt;
  }
  const bool narrow = run <= kNarrow && Columns(g, kNarrow) < Columns(g, kWide);
  return Plan{kTileM, static_cast<int>(narrow ? kNarrow : kWide),
              multiprocessors, 0, Path::kPatches};
}

}  // namespace jax_convbatch::hopper
