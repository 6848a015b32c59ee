// SPDX-License-Identifier: Apache-2.0
// A convolution as the kernels for 16 and 32 channels see it. Host only.
#pragma once

#include "conv_geometry.h"
#include "cuda/sm90/kernels/small/small_plan.h"

namespace jax_convbatch::hopper {

struct SmallTiles {
  int rows, cols;
};

// fprop, or the fprop that a dgrad is but for the order of the taps.
struct SmallShape {
  int64_t n, in_h, in_w, out_h, out_w, in_c, out_c;
  int64_t taps_h, taps_w, pad_h, pad_w, dilation_h, dilation_w;

  // Of a tile's input.
  int64_t rows(const SmallTiles& t) const {
    return t.rows + (taps_h - 1) * dilation_h;
  }
  int64_t cols(const SmallTiles& t) const {
    return t.cols + (taps_w - 1) * dilation_w;
  }
  int64_t shared_bytes(const SmallTiles& t) const {
    const int stages = in_c * out_c > 256 ? 2 : 1;
    return 4 * in_c * (taps_h * taps_w * out_c + stages * rows(t) * cols(t));
  }
  int64_t down(const SmallTiles& t) const {
    return (out_h + t.rows - 1) / t.rows;
  }
  int64_t across(const SmallTiles& t) const {
    return (out_w + t.cols - 1) / t.cols;
  }
  int64_t tiles(const SmallTiles& t) const { return n * down(t) * across(t); }
};

SmallShape FpropSmall(const ConvGeometry& g);
SmallShape DgradSmall(const ConvGeometry& g);

}  // namespace jax_convbatch::hopper
