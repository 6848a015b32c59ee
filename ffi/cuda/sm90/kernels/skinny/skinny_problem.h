// SPDX-License-Identifier: Apache-2.0
// What the host tells the kernels of skinny_conv.cuh, skinny_wgrad.cuh and
// skinny_ring.cuh.
#pragma once

#include <cstdint>

#include "cuda/common/fast_divmod.h"

namespace jax_convbatch::hopper {

// out[pixel, :] = in[pixel, :] w. Of dgrad w lies the other way round: by the
// channels of the result.
struct SkinnyProblem {
  const void *in, *w;
  void* out;
  int64_t pixels;
  int in_channels, out_channels;
  bool flipped;
  FastDivmod<uint32_t> divide_row;  // by the elements of a row of w
};

// dw = x^T dy, from pixel to pixel. Rows of a product are the channels of one
// of the two operands, `a`, and its columns those of the other, `b`.
struct SkinnyWgradProblem {
  const void *a, *b;
  float* partials;  // [blocks, C, K]
  int64_t pixels;
  int a_channels, b_channels;
  bool flipped;  // a is dy
};

// The same through a ring in shared memory. A stage is kSkinnyRuns runs of
// `run` pixels; bytes from run to run, and from a stage's a to its b.
struct SkinnyRingProblem : SkinnyWgradProblem {
  int run, a_pitch, b_pitch, b_at, stage_bytes;
  int64_t stages;
  int ring;      // stages in shared memory
  int a_blocks;  // of 16 channels, a warp's each
  int columns;   // of a product, by eight
};

}  // namespace jax_convbatch::hopper
