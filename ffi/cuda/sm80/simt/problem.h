// SPDX-License-Identifier: Apache-2.0
// What the host tells the kernels for f32 on the ordinary cores.
#pragma once

#include <cstdint>

#include "cuda/common/divisor.h"
#include "cuda/common/tap_axis.h"
#include "cuda/sm80/simt/simt.h"

namespace jax_convbatch::simt {

using hopper::Divisor;
using hopper::TapAxis;

// Outputs that use the same taps: all of fprop's, a residue class of dgrad's.
// They form a grid of rows x cols an image.
struct Subproblem {
  TapAxis taps_h, taps_w;
  Divisor rows, cols;
  int pixels;      // over all images
  int steps;       // taps x blocks of kDepth input channels
  int first_tile;  // of the launch's pixel tiles
  // The base pixel of the first output, and where that output lies.
  int in_h, in_w, in_step_h, in_step_w;
  int out_h, out_w, out_step_h, out_step_w;
};

// Pixels x output channels, summed over taps and input channels. Written in
// fprop's words; dgrad has dy for `in`, dx for `out`, and w's channels
// exchanged.
//
// The sum is formed in `k_slices`, each from zero, which are added in order. A
// block forms all of a tile's K slices and adds them up in `out`; or, where the
// blocks are split, one, which it writes to `out` + k_slice * k_slice_size.
struct ConvProblem {
  const float *in, *w;
  float* out;
  int height, width, channels;              // of in
  int out_height, out_width, out_channels;  // of out
  int filter_width;
  int depth_blocks;  // of kDepth input channels
  int subs, k_slices;
  bool split;
  int64_t k_slice_size;
  Divisor n_tiles;  // along the output channels
  Divisor tiles;    // of a K slice
  Subproblem sub[kMostSubproblems];
};

// Filter rows (taps x C) x output channels, summed over pixels. Each of
// `workers` sums up a range of pixels, to dw + worker * w_size.
struct WgradProblem {
  const float *x, *dy;
  float* dw;
  int height, width;
  Divisor channels, filter_width, rows, cols;  // C, S, P, Q
  int out_channels, filter_rows;               // K, taps x C
  int pixels, workers;
  int stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
  Divisor n_tiles, tiles;
};

}  // namespace jax_convbatch::simt
