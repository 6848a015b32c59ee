// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>

#include "cuda/common/left_out.h"
#include "cuda/sm90/kernels/fused_backward/masked_backward.h"
#include "cuda/sm90/problem/fused_backward.h"
#include "cuda/sm90/problem/subproblems.h"

namespace jax_convbatch::hopper {
namespace {

// More slices read dy too often.
constexpr int64_t kMostSlices = 8;

int64_t Pixels(const ConvGeometry& g) { return g.N * g.output_pixels(); }

// Whether each pixel of y has one of x, and those between follow a stride of 2.
bool IsDivided(const ConvGeometry& g, Type type) {
  const Axes& s = g.stride;
  if (g.D != 1 || g.O != 1 || g.taps() != 1 || g.groups != 1 || !g.pad.all(0) ||
      !g.input_dilation.all(1) || s.h * s.w == 1 || s.h > 2 || s.w > 2 ||
      g.H != g.P * s.h || g.W != g.Q * s.w || !IsPlain2d(g, type)) {
    return false;
  }
  if (!IsWalkable(type, InputOf(g), OutputOf(g), FpropSubproblem(g)))
    return false;
  for (const SubproblemAxes& sub : DgradSubproblems(g)) {
    if (!IsWalkable(type, OutputOf(g), InputOf(g), sub)) return false;
  }
  return true;
}

// Whether the kernel of dw_stationary_backward.cuh has the channels, and reads
// no more than those of masked_backward.h.
bool InSlices(const ConvGeometry& g, Type type) {
  const int64_t slice = DwStationarySlice(g);
  if (IsLeftOut(Family::kDwStationaryBackward) || slice == 0 ||
      g.C / slice > kMostSlices)
    return false;
  return (g.K < 512 && g.C / slice <= 4) || !HasMaskedBackward(g, type);
}

}  // namespace

int64_t DwStationarySlice(const ConvGeometry& g) {
  auto divides = [&](int64_t slice) { return g.C % slice == 0 ? slice : 0; };
  switch (g.K) {
    case 64:
      return divides(256) ? 256 : divides(64);
    case 128:
      return divides(128);
    case 256:
      return divides(128) ? 128 : divides(64);
    case 512:
      return divides(64);
    default:
      return 0;
  }
}

bool HasFusedBackward(const ConvGeometry& g, Type type) {
  const int64_t pixels = Pixels(g);
  // The copy of a tile's bitmask is a multiple of 16 bytes.
  return (InSlices(g, type) || HasMaskedBackward(g, type)) &&
         type != Type::kTf32 && g.groups == 1 && pixels > 0 &&
         (g.is_pointwise() || IsDivided(g, type)) && pixels * g.K % 128 == 0 &&
         pixels < INT32_MAX - kBackwardPixels;
}

bool TakesMaskedBackward(const ConvGeometry& g, Type type) {
  return HasFusedBackward(g, type) && !InSlices(g, type);
}

// Each with a tile for both warpgroups, where there are so many.
int DwStationaryBlocks(const ConvGeometry& g, int multiprocessors) {
  const int64_t pairs =
      (Pixels(g) + 2 * kBackwardPixels - 1) / (2 * kBackwardPixels);
  const int64_t most = multiprocessors / (g.C / DwStationarySlice(g));
  return static_cast<int>(std::clamp<int64_t>(most, 1, pairs));
}

int64_t FusedBackwardWorkspace(const ConvGeometry& g, Type type,
                               int multiprocessors) {
  if (TakesMaskedBackward(g, type))
    return MaskedBackwardWorkspace(g, multiprocessors);
  const int64_t slice = DwStationarySlice(g);
  return g.C / slice * DwStationaryBlocks(g, multiprocessors) * (slice + 1) *
         g.K * 4;
}

}  // namespace jax_convbatch::hopper
