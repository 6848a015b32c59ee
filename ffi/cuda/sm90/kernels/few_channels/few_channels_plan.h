// SPDX-License-Identifier: Apache-2.0
// Which convolutions the few-channels kernels run, and how. Host only.
#pragma once

#include <algorithm>
#include <optional>

#include "cuda/sm90/problem/conv.h"

namespace jax_convbatch::hopper {

// The longest columns that fprop takes: these have no padding.
inline constexpr int kFullFewChannelsSteps = 16;

// Boxes of 64 pixels of dy that wgrad may have in shared memory at once.
inline constexpr int kFewChannelsShortBoxes = 28;

// Whether a row band is the part of an image row that a tile reads, and not the
// whole row: that of long sequences.
inline bool HasPartsOfRows(const ConvGeometry& g) {
  return g.P == 1 && g.Q > 64 * kFewChannelsShortBoxes;
}

// The numbers of FewChannelsLayout, and what follows from a tile's size.
struct FewChannelsShape {
  int64_t origin, first, runs, length, lead, pairs, run_cols, run_col;
  // Elements from pixel to pixel, and beyond a row's last pixel's first; image
  // rows from run to run.
  int64_t step, span, step_h;
  bool odd;

  explicit FewChannelsShape(const ConvGeometry& g);

  // Whether columns are so many steps, of nothing but their own elements.
  bool is_full(int of_steps) const {
    return !odd && lead == 0 && length % 2 == 0 &&
           runs * length == 16 * of_steps;
  }
  // Of 16 elements of a column.
  int64_t steps() const { return (runs * pairs * 2 + 15) / 16; }
  // Rows of y that a tile may touch, and rows of its row band.
  static int64_t RowsOfY(const ConvGeometry& g, int64_t tile);
  static int64_t Rows(const ConvGeometry& g, int64_t tile);
  // Elements of a row of a row band.
  int64_t Pitch(const ConvGeometry& g, int64_t tile) const;
  // Of a stage without dy and with it; multiples of 1024.
  int64_t StageBytes(const ConvGeometry& g, int64_t tile, bool dy) const;
};

// Cycles of an SM for 64 pixels, for a byte of a row band, for a tile, and for
// what a block does once.
struct FewChannelsCosts {
  double box, byte, tile, once = 0;
};

// The pixels of a tile, of those that fit, with which so many blocks are done
// first, or 0 where none fits. The costs depend on the number of tiles.
template <typename CostsOf, typename Fits>
int64_t BestFewChannelsTile(const ConvGeometry& g, int64_t blocks,
                            CostsOf costs_of, Fits fits) {
  const FewChannelsShape shape(g);
  int64_t best = 0;
  double least = 0;
  for (int64_t tile = 64; tile <= 512; tile += 64) {
    if (!fits(tile)) continue;
    const int64_t tiles = g.N * ((g.P * g.Q + tile - 1) / tile);
    const int64_t waves = (tiles + blocks - 1) / blocks;
    const double band =
        FewChannelsShape::Rows(g, tile) * shape.Pitch(g, tile) * 2.0;
    const FewChannelsCosts costs = costs_of(tiles);
    const double time =
        costs.once +
        waves *
            (std::max(tile / 64 * costs.box, band * costs.byte) + costs.tile);
    if (best == 0 || time < least) {
      best = tile;
      least = time;
    }
  }
  return best;
}

// The steps that there are fprop kernels for; the least that is enough, or 0.
int FewChannelsSteps(const FewChannelsShape& shape);

// Whether wgrad has row bands of dy, and x in dy's place: of fewer output
// channels than input channels, at unit strides.
bool BandsOfDy(const ConvGeometry& g);

// Whether wgrad has a tile a block, all of it in shared memory at once.
bool IsShortFewChannels(const ConvGeometry& g, int64_t tile, int64_t blocks);

// Channels of y, a multiple of 64, of a block of fprop: where there are fewer
// tiles than blocks, these share the channels.
int64_t FewChannelsShare(const ConvGeometry& g, int64_t tiles, int64_t blocks);

// Shared memory of a block; of fprop one with so many channels of y.
int64_t FewChannelsShortBytes(const ConvGeometry& g, int64_t tile);
int64_t FewChannelsFpropBytes(const ConvGeometry& g, int64_t tile,
                              int64_t share);
int64_t FewChannelsWgradBytes(const ConvGeometry& g, int64_t tile);

// For geometries of FitsIn32Bits, in bf16 and f16; nothing where the
// kernels cannot run.
std::optional<Plan> PlanFewChannelsFprop(const ConvGeometry& g,
                                         int multiprocessors);
std::optional<Plan> PlanFewChannelsDgrad(const ConvGeometry& g,
                                         int multiprocessors);
std::optional<Plan> PlanFewChannelsWgrad(const ConvGeometry& g,
                                         int multiprocessors);

// The kernels of a plan of the path kFewChannels; see conv.h.
cudaError_t FewChannelsFprop(const ConvCall& call, Stage stage,
                             cudaStream_t stream);
cudaError_t FewChannelsDgrad(const ConvCall& call, Stage stage,
                             cudaStream_t stream);
cudaError_t FewChannelsWgrad(const ConvCall& call, Stage stage,
                             cudaStream_t stream);

}  // namespace jax_convbatch::hopper
