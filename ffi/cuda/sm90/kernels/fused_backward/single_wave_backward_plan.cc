// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "cuda/common/left_out.h"
#include "cuda/sm90/kernels/fused_backward/single_wave_backward.h"

namespace jax_convbatch::hopper {
namespace {

int64_t Pixels(const ConvGeometry& g) { return g.N * g.output_pixels(); }

}  // namespace

// As measured at batch 8 on an H200. dgrad's sums are whole up to so many
// output channels.
bool HasSingleWaveBackward(const ConvGeometry& g, Type type) {
  constexpr int64_t kMostPixels = 6400, kMostChannels = 2048;
  constexpr int64_t kLargestFilter = int64_t{1} << 21;
  return !IsLeftOut(Family::kSingleWaveBackward) && type != Type::kTf32 &&
         g.taps() == 1 && g.C % kSingleWaveBackwardColumns == 0 &&
         g.K % 128 == 0 && g.C <= kMostChannels && g.K <= kMostChannels &&
         g.C * g.K <= kLargestFilter && Pixels(g) <= kMostPixels;
}

// Blocks of two warpgroups read least, and at a stride there are fewest of
// them. Otherwise two blocks of one share an SM, unless tiles of dx are so few
// that a narrower one with an SM of its own, and more stages, is done earlier.
SingleWaveBackwardTiling SingleWaveBackwardTilingOf(const ConvGeometry& g,
                                                    int multiprocessors) {
  constexpr int64_t kFewestSteps = 3;  // of a block
  const bool strided = !g.is_pointwise();
  SingleWaveBackwardTiling tiling{};
  tiling.groups = strided ? 2 : 1;
  const int64_t rows = tiling.groups * 64;
  const int64_t dx_tiles = (Pixels(g) + rows - 1) / rows * (g.C / 128);
  const bool narrow = dx_tiles < multiprocessors / 4;
  tiling.dx_channels = narrow ? 64 : 128;
  tiling.blocks = strided || narrow ? 1 : 2;
  // Of dw, half of the blocks that run at once.
  const int64_t dw_tiles = g.K / rows * (g.C / kSingleWaveBackwardColumns);
  const int64_t most = multiprocessors * tiling.blocks / 2;
  const int64_t steps = (Pixels(g) + 63) / 64;
  tiling.splits = 1;
  while (tiling.splits < kSingleWaveBackwardMostSplits &&
         dw_tiles * tiling.splits * 2 <= most &&
         steps >= kFewestSteps * tiling.splits * 2) {
    tiling.splits *= 2;
  }
  // The longer ones, that the shorter fill the gaps at the end.
  tiling.dw_first = steps > g.K / 64 * tiling.splits;
  return tiling;
}

}  // namespace jax_convbatch::hopper
