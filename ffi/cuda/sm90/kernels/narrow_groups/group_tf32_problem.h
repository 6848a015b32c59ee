// SPDX-License-Identifier: Apache-2.0
// What the host tells the kernel of narrow groups in f32. In fprop's words;
// dgrad is the same with dy for x and dx for y.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/common/divisor.h"
#include "cuda/sm90/kernels/narrow_groups/group_tf32_tiling.h"

namespace jax_convbatch::hopper {

// Reads `offset` (in 16 bytes) from an output's place in the first class.
struct GroupTap {
  int32_t offset, filter;
};

struct GroupTf32Problem {
  CUtensorMap input[kMostGroupClasses];   // [N, H, W, groups, C] of a class
  CUtensorMap output[kMostGroupClasses];  // one box is a tile
  const float* filter;
  GroupTap taps[kMostGroupTaps];
  int taps_end[kMostGroupClasses];  // of each output class
  int input_classes, output_classes;
  GroupTiling tiling;
  int input_h, input_w;  // of the box of the first tile
  int tap_pixels;        // from a tap to the next of a row, in its box
  int taps_count;
  int inputs, outputs, all_outputs;  // channels of a group; K (dgrad: of dy)
  bool is_dgrad;
  int eights;         // of a group's input channels
  int groups;         // of the convolution
  Divisor per_image;  // tiles
  Divisor tiles;      // of a line of channels: of all images
  int lines;          // of channels
  int reciprocal;     // of width, in 2^-16
};

}  // namespace jax_convbatch::hopper
