// SPDX-License-Identifier: Apache-2.0
// What the host tells the kernel of row_streaming.cuh.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/common/fast_divmod.h"
#include "cuda/sm90/kernels/row_streaming/row_streaming_shape.h"

namespace jax_convbatch::hopper {

struct RowStreamingProblem {
  CUtensorMap in;  // boxes of 64 channels x kRowStreamingPixels pixels of a row
  const uint16_t *input, *w;
  uint16_t* out;
  RowStreamingAxis h, w_axis;
  int in_h, in_w, in_c, channel_blocks;
  int out_c;
  // Of the filter, in elements: from input channel to input channel, from
  // output channel to output channel, and from tap to tap.
  int64_t w_in, w_out, w_tap;
  // Of a patch, in the order of memory: its values, and of one of its rows.
  int values, row_values;
  bool pairs;  // whether two neighbouring values lie in one aligned word
  // The work: strips of 64 columns of patches by `rows` rows of them.
  FastDivmod<uint32_t> col_strips, row_strips;
  int rows, strips;
};

}  // namespace jax_convbatch::hopper
