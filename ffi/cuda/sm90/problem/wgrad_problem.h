// SPDX-License-Identifier: Apache-2.0
// What the host tells the wgrad kernels: dw as a product of filter rows (taps x
// input channels) by output channels, summed over pixels.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/common/fast_divmod.h"

namespace jax_convbatch::hopper {

// dw in tiles (wgrad_tiling.h). The steps of a tile are dealt out to classes in
// turns; the classes of all tiles lie in one line, cut evenly among the blocks
// of the launch, so that blocks that work at the same time read about the same
// pixels. A tile that one block does whole goes to dw; the partials of the
// others go to `partials`, to be added in order. Where whole_each > 0 only the
// tiles from first_shared on are shared; after its share a block does so many
// whole ones.
struct WgradTiles {
  void* dw;
  float* partials;
  int C, K;  // of dw: the input channels of a group
  int taps, filter_width, channel_blocks;
  int n_tiles, tiles;
  int steps;    // of a tile
  int classes;  // of a tile; as many as steps: each block's steps are
                // contiguous
  int blocks;
  int whole_each, first_shared;
  int splits;    // blocks of each shared tile; 0 where shares do not end with
                 // tiles
  int cluster;   // of them add their sums before they write; 1: none
  int rounds;    // steps of every class; some have one more
  bool m_minor;  // tiles: filter rows before output channels
  FastDivmod<uint32_t> by_minor_tiles, by_splits, by_channel_blocks,
      by_filter_width;
  // Whether the last step of a tile has no more than kRestPixels, and the class
  // that has it.
  bool has_rest;
  int rest_class;
  // Of several groups: blocks of 64 channels and tiles in each, and how many
  // channels of x and of dy it takes (64 of several narrow groups).
  int group_blocks, group_tiles, group_inputs, group_outputs;
  // Blocks of two tiles in a cluster that copy x (otherwise dy) for each other.
  bool paired, shares_x;

  // Where block b's share of the line begins.
  __device__ int64_t Begin(int64_t b) const {
    return b * tiles * classes / blocks;
  }
};

// Of a step's 64: what one multiplication takes.
inline constexpr int kRestPixels = 16;

// A step is 64 pixels, image after image.
struct WgradProblem : WgradTiles {
  CUtensorMap x;   // im2col, 64 pixels a box
  CUtensorMap dy;  // tiled, [pixels, K], 64 x 64 a box
  // The same with boxes of kRestPixels, for a last step of no more: the zeros
  // past the end would take several times as long as to load.
  CUtensorMap x_rest, dy_rest;
  int rows, cols;  // P, Q
  FastDivmod<uint32_t> by_rows, by_cols;
  int base_h, base_w, step_h, step_w, dilation_h, dilation_w;
  bool volumes;  // three spatial axes
  // An image has O slices, the filter R rows a slice.
  FastDivmod<uint32_t> by_slices, by_slice_rows;
  int base_d, step_d, dilation_d;
};

// A step is one row of a strip of dy, `strip` pixels of `images` images. Rows
// that taps connect, `dilation` apart, follow each other.
struct HaloProblem : WgradTiles {
  CUtensorMap x;   // [H, W, N, C], a strip and what taps add to it a box
  CUtensorMap dy;  // [P, Q, N, K], strip pixels of a row a box
  int images, strip, strips;
  int rows;    // P
  int height;  // H
  int pad_h, pad_w;
  int dilation;  // from one row of taps to the next
  // Of three axes, in whose maps x is [N, H, W, D, C], and dy like it: groups
  // of slices of an image, slices of x, and the padding before the first.
  int slice_groups, depth, pad_d;
  int tap_bytes;  // from a pixel to the next tap's
  int x_bytes, dy_bytes;
  int stages;
  // Of tiles that have helpers (wgrad_halo_scheduler.cuh): so many blocks do
  // all steps but the first own_steps.
  int own_steps, helpers;
  int whole_tiles;  // of HaloRounds in wgrad_tiling.h
};

}  // namespace jax_convbatch::hopper
