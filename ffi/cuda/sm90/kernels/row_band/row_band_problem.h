// SPDX-License-Identifier: Apache-2.0
// What the host tells the row-band kernels, which take fprop and dgrad at
// stride 1 of few channels; of narrow groups fprop at stride 2, too. In fprop's
// words, as conv_problem.h.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/common/divisor.h"
#include "cuda/common/tap_axis.h"
#include "cuda/sm90/kernels/row_band/row_band_tiling.h"

namespace jax_convbatch::hopper {

struct RowBandProblem {
  CUtensorMap input[kMaxRowBandClasses];  // box_rows x width pixels a box
  CUtensorMap weights;  // [taps, C, K], 64 output channels a box
  CUtensorMap output;   // rows x cols pixels a box
  CUtensorMap piece;    // the same, of a tile's piece
  TapAxis taps_h, taps_w;
  // Of several groups: where taps begin, in 16 bytes.
  int32_t tap_at[kMaxGroupRowBandTaps];
  RowBandTiling tiling;
  int filter_width;            // S
  int tap_bytes;               // of the filter
  int reduction_steps;         // of 16 channels, in a tap
  int input_h, input_w;        // of the first output's first tap
  int height, cols, channels;  // of the output
  int tiles;                   // the last ones, from `whole` on, are pieces
  int whole;
  Divisor pieces;     // of a tile
  Divisor per_image;  // tiles
  Divisor strips;     // those of the tiling
  int reciprocal;     // of width, in 2^-16
  Divisor units;      // of 64 output channels
};

}  // namespace jax_convbatch::hopper
