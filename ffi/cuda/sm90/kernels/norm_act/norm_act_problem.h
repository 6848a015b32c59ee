// SPDX-License-Identifier: Apache-2.0
// What the host tells the kernel of norm_act_kernel.cuh, in fprop's words. Of
// dgrad, x and c are dy and its channels, y and k the gradient and its.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_NORM_ACT_NORM_ACT_PROBLEM_H_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_NORM_ACT_NORM_ACT_PROBLEM_H_

#include <cuda.h>

#include "activation.h"
#include "cuda/common/divisor.h"
#include "cuda/sm90/kernels/norm_act/norm_act_shape.h"

namespace jax_convbatch::hopper {

struct NormActProblem {
  CUtensorMap input;    // [N, H, W, C] by halos of 64 channels
  CUtensorMap weights;  // [taps, C, K]
  // [N, P, Q, K] by blocks of 64 pixels. dgrad reads x as the residual, and
  // writes the activated x.
  CUtensorMap output, residual, activated;
  const float *scale, *shift;
  int factor_step;  // from one sample's to the next's
  const void* bias;
  bool has_residual;
  float* partials;
  Activation activation;

  NormActTile tile;
  int tile_cols, tile_rows, tile_images;
  Divisor n_tiles, tiles_w, tiles_h;  // along the channels; of an image
  int tiles;

  int n, h, w, c, k;  // of x; k of y
  int p, q;           // of y
  int pad_h, pad_w;
  Divisor halo_cols, halo_rows;
  int halo_pixels;
  int taps_h, taps_w;
  // In units of 16 bytes of shared memory: from a tap to the next, from the
  // last of a row to the first of the next, from a block's 8 pixels to the next
  // 8, from the first block to the second.
  int tap_step, row_step, eight_step, block_step;
  int channel_blocks;  // of 64
};

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_NORM_ACT_NORM_ACT_PROBLEM_H_
