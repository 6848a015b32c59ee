// SPDX-License-Identifier: Apache-2.0
// What the host tells the kernels for grouped convolutions.
#pragma once

#include "cuda/sm80/direct/channel_blocks.h"
#include "cuda/sm80/direct/staging.cuh"
#include "cuda/sm80/direct/walk.h"

namespace jax_convbatch::direct {

// fprop and dgrad: result from source.
struct GroupedProblem {
  const void *source, *filter;
  void* result;
  AxisWalk h, w;
  Staging in;
  TileGrid grid;
  ChannelBlocks channels;
  bool is_dgrad;
  int workers;
  // A warp computes 32 outputs of a class by a few blocks of channels.
  FastDivmod<uint32_t> tile_w, pixel_sets, classes_w;
  FastDivmod<uint32_t> in_group, out_group, depth_blocks;
  int outputs;  // of a tile's class
  int items;    // of a tile
};

// wgrad: each worker's sums over its tiles, [worker][tap][C / groups][K].
struct GroupedWgradProblem {
  const void *x, *dy;
  float* partials;
  AxisWalk h, w;
  Staging in, out;  // tiles of x and of dy
  TileGrid grid;
  WgradRoles roles;
  int channel_tiles, workers;
  FastDivmod<uint32_t> tile_w, in_group, out_group;
  int pixel_sets;  // of 16 outputs, in a tile
};

}  // namespace jax_convbatch::direct
