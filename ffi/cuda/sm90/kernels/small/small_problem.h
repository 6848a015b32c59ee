// SPDX-License-Identifier: Apache-2.0
// What the host tells the kernel of small_tf32.cuh.
#pragma once

#include "cuda/common/fast_divmod.h"

namespace jax_convbatch::hopper {

// out[p, q, :] = sum over r, s of in[p + r dilation_h - pad_h, ...] w[r, s].
struct SmallProblem {
  const float *in, *w;
  float* out;
  int in_h, in_w, out_h, out_w;
  int pad_h, pad_w, dilation_h, dilation_w;
  int taps_h, taps_w;
  int tile_in_h, tile_in_w;  // of the input, in shared memory
  FastDivmod<uint32_t> divide_in_w;
  FastDivmod<uint32_t> across, down;  // tiles of an image
  int tiles;
};

}  // namespace jax_convbatch::hopper
