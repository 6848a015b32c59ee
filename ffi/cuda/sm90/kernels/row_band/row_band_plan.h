// SPDX-License-Identifier: Apache-2.0
// How the row-band kernel cuts an output into tiles. Host only.
#pragma once

#include <algorithm>
#include <optional>

#include "cuda/sm90/kernels/row_band/row_band_tiling.h"
#include "cuda/sm90/problem/subproblems.h"

namespace jax_convbatch::hopper {

// Steps of 16 channels in the reduction, for each tap.
inline int RowBandSteps(const Activations& in) {
  return static_cast<int>(in.c > 64 ? (in.c + 31) / 32 * 2
                                    : std::max<int64_t>((in.c + 15) / 16, 2));
}

// Whether a row band has two boxes of channels: fprop of 65 to 128 to at most
// 32.
bool HasTwoBoxes(const ConvGeometry& g, const Activations& in);

// A tap of the filter in shared memory: input channels, for two products of 16
// or more, by 64 output channels, or by 32 where row bands have two boxes.
struct RowBandFilter {
  int rows, row_bytes;
};
RowBandFilter RowBandFilterOf(const ConvGeometry& g, const Activations& in);

// For products of kRowBandPixels or kColumnStripPixels, or for those of narrow
// groups of kGroupRowBandPixels. Nothing where the kernel cannot run the
// sub-problem: it takes 16-bit types, up to 64 input channels but where row
// bands have two boxes, at most kMaxRowBandTaps taps (of several groups
// kMaxGroupRowBandTaps) whose filter leaves room for two tiles, stride 1 (of
// narrow groups also 2) and, if whole, rows of which at least one fits a
// product.
std::optional<RowBandTiling> TileRowBand(const ConvGeometry& g, Type type,
                                         const Activations& in,
                                         const Activations& out,
                                         const SubproblemAxes& sub, int pixels);

// The same for a set of 64 channels of several groups: several narrow ones, of
// kGroupRowBandPixels, or one of 64.
std::optional<RowBandTiling> TileGroupRowBand(const ConvGeometry& g, Type type,
                                              const Activations& in,
                                              const Activations& out,
                                              const SubproblemAxes& sub,
                                              int pixels);

}  // namespace jax_convbatch::hopper
