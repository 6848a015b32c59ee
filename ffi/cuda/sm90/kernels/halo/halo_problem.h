// SPDX-License-Identifier: Apache-2.0
// What the host tells the kernel of halo_kernel.cuh, in fprop's words. Of
// dgrad, x and c are dy and its channels, y and k the gradient and its.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "activation.h"
#include "cuda/common/divisor.h"
#include "cuda/sm90/kernels/halo/halo_shape.h"

namespace jax_convbatch::hopper {

struct HaloProblem {
  CUtensorMap input;    // [N, D, H, W, C] by halos of 128 bytes of channels
  CUtensorMap weights;  // [taps, C, K]
  // [N O, P, Q, K] by blocks of 64 pixels.
  CUtensorMap output, residual, z;
  bool has_residual, keeps_z;
  const void *bias, *channel_scale;
  Activation activation;
  uint8_t* bitmask;  // see epilogue.h

  HaloTile tile;
  int unit_cols, unit_rows;
  Divisor n_tiles, units_w, units_h;  // along the channels; of an image
  int tiles;

  int n, d, h, w, c, k;  // of x; k of y
  int p, q, slices;      // of y: N O
  Divisor depth;         // O
  int pad_d, pad_h, pad_w;
  int dilation_d;
  Divisor halo_cols;
  int halo_rows, halo_pixels, halos;  // of a unit; of a tile
  int taps_d, taps_h, taps_w;
  int first_tap, next_tap;  // of the filter: dgrad's are in reverse
  // In units of 16 bytes of shared memory: from a tap to the next, from the
  // last of a row to the first of the next, from a block's 8 pixels to the next
  // 8, from the first block to the second.
  int tap_step, row_step, eight_step, block_step;
  int channel_blocks;  // of 128 bytes
  bool last_is_half;   // at most: half of its zeros are not multiplied
};

}  // namespace jax_convbatch::hopper
