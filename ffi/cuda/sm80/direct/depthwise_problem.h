// SPDX-License-Identifier: Apache-2.0
// What the host tells the depthwise kernels.
#pragma once

#include "cuda/sm80/direct/depthwise_kind.h"
#include "cuda/sm80/direct/staging.cuh"
#include "cuda/sm80/direct/walk.h"

namespace jax_convbatch::direct {

// fprop and dgrad: result from source, of `channels` channels both.
struct DepthwiseProblem {
  const void *source, *filter;
  void* result;
  AxisWalk h, w;
  Staging in;
  TileGrid grid;
  int channels, channel_tiles, workers;
  // Of a tile: classes_h x classes_w x cols x rows, rows first.
  FastDivmod<uint32_t> patch_rows, patch_cols, classes_w;
  int patches;
  bool sliding;  // as IsSliding says
};

// wgrad: each worker's sums over its tiles, [worker][tap][channel].
struct DepthwiseWgradProblem {
  const void *x, *dy;
  float* partials;
  AxisWalk h, w;
  Staging in, out;  // tiles of x and of dy
  TileGrid grid;
  int channels, channel_tiles, workers;
  FastDivmod<uint32_t> patch_rows, patch_cols;
  int patches;
  // The taps are split into chunks; as many streams of threads as there is room
  // for share a tile's patches for each chunk of a block.
  int chunks, streams, chunk_blocks;
};

}  // namespace jax_convbatch::direct
