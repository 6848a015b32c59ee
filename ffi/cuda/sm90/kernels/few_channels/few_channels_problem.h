// SPDX-License-Identifier: Apache-2.0
// What the host tells the few-channels kernels: convolutions of few channels,
// whose columns are short enough for a warpgroup's registers.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/common/fast_divmod.h"

namespace jax_convbatch::hopper {

// A tile's row band: the image rows that its pixels read, each from element
// `origin` of the image row on, in rows of `pitch` elements. A pixel's column
// is `runs` runs of elements that lie together there, in pairs, which the
// hardware loads at once: a run is `lead` elements that are none of its own, so
// that it starts at an even element, its `length`, and possibly one more.
struct FewChannelsLayout {
  int origin, pitch;
  int first;  // element of the first pair of a row band's first pixel
  int runs, length, lead;
  FastDivmod<uint32_t> pairs, run_cols;  // pairs of a run; runs side by side
  int run_row, run_col;                  // elements from run to run
};

struct FewChannelsProblem {
  const uint16_t* x;
  int H, image_row;  // image rows, and elements of one
  int vector;        // elements of a load
  int copied_row;    // elements of an image row that are in a row band
  FewChannelsLayout layout;
  FastDivmod<uint32_t> Q;
  int pixels;                       // of an image, P Q
  int pad_h, stride_h, pixel_step;  // pixel_step: elements from pixel to pixel
  // The same where row bands are parts of image rows, which begin with the
  // tile's first pixel; else 0.
  int part_step;
  int K;
  // Tiles of `tile` pixels of an image, a multiple of 64, or of 16 in
  // few_channels_wgrad_short.cuh.
  int tile, rows, rows_p;  // of the largest row band: image rows, rows of y
  FastDivmod<uint32_t> tiles_image;
  int tiles;
  int stage_bytes;

  // Where x and y have changed places (dgrad, and wgrad of few output
  // channels): w, or dw, is [taps from the last, K, flipped]. Else 0.
  int taps, flipped;

  // fprop
  const uint16_t* w;
  uint16_t* y;
  CUtensorMap y_map;  // [N, P Q, K], boxes of 64 pixels x 64 channels
  bool store_by_map;
  int share;  // channels of y of a block; blockIdx.y counts them

  // wgrad
  CUtensorMap dy_map;  // as y_map
  void* dw;
  float* partials;
  int n_tiles, splits;
};

}  // namespace jax_convbatch::hopper
