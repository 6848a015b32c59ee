// SPDX-License-Identifier: Apache-2.0
// What the host tells the kernel of few_channels_tf32.cuh.
#pragma once

#include "cuda/common/fast_divmod.h"

namespace jax_convbatch::hopper {

// out[p, q, :] = sum over r, s of in[p stride + r dilation - pad, ...] w[r, s].
// flipped: dgrad, which takes the taps from the last and the filter with its
// channels' roles exchanged.
struct FewChannelsTf32Problem {
  const float *in, *w;
  float* out;
  int in_h, in_w, in_c, out_h, out_w, out_c;
  int stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
  int taps_h, taps_w;
  bool flipped;
  int rows, cols;       // outputs of a tile
  int band, strip_row;  // floats of its inputs, and of a row of them
  FastDivmod<uint32_t> divide_strip_row;
  FastDivmod<uint32_t> across, down;  // tiles of an image
  int tiles;
  FastDivmod<uint32_t> shares;  // blocks that share a tile's output channels
};

}  // namespace jax_convbatch::hopper
