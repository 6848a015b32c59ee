// SPDX-License-Identifier: Apache-2.0
// What the host tells the convolution kernel: y = conv(x, w) seen as a matrix
// product of M pixels by N channels, summed over taps and input channels.
// Written in fprop's words; dgrad is the same product with dy for x, dx for y,
// and the filter's channels exchanged.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/common/divisor.h"
#include "cuda/common/tap_axis.h"

namespace jax_convbatch::hopper {

// How a sub-problem's pixels are stored: as rows of one matrix, by boxes of 64
// channels; as they are walked, or by threads where the walk passes the image's
// border (TMA traps where a walk that is stored passes it, or a tile begins
// before it); or to the workspace, a matrix a K slice.
enum class Output { kMatrix, kWalk, kThreads, kPartials };

// Pixels of the output that use the same taps: all of them, or in a strided
// dgrad those of one residue class. They form a grid of rows x cols an image.
struct ConvSubproblem {
  CUtensorMap input;  // im2col
  CUtensorMap output;
  void* output_data;  // kThreads
  TapAxis taps_h, taps_w, taps_d;
  Divisor rows, cols, slices;
  int pixels;            // over all images
  int iterations;        // taps x blocks of 64 channels
  int slice_iterations;  // of one tap of depth
  // The base pixel of the sub-problem's first output, and where that output
  // lies.
  int input_h, input_w, input_step_h, input_step_w;
  int output_h, output_w, output_step_h, output_step_w;
  // Of three axes: an image has `slices` grids, and `input_slices` of x.
  int input_d, input_step_d, output_d, output_step_d, input_slices;
};

template <int kSubs>
struct ConvProblem {
  CUtensorMap weights;  // tiled, [taps, C, K]
  int channels;         // N: of the output
  int channel_blocks;   // of the reduction, 64 each
  int filter_width;     // S
  int slice_taps;       // R S
  bool volumes;         // three spatial axes
  Divisor n_tiles;      // tiles along the channels
  // Of several groups: tiles along a group's channels, and its input channels.
  Divisor group_tiles;
  int group_inputs;
  Divisor subs;
  Divisor sub_tiles;  // of each, where they come one after another
  int tiles;          // of all sub-problems, as many of each
  ConvSubproblem sub[kSubs];
};

}  // namespace jax_convbatch::hopper
