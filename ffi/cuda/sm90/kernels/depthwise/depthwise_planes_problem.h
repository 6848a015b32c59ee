// SPDX-License-Identifier: Apache-2.0
// What the host tells the kernels of depthwise_planes.h.
#pragma once

#include "cuda/common/fast_divmod.h"
#include "cuda/sm90/kernels/depthwise/depthwise_planes_tiling.h"

namespace jax_convbatch::direct {

// The rows of an operand that a group takes one by one, of so many runs for
// each segment; the first lies at the segment's first output moved by the
// origin.
struct PlanesRows {
  const void* data;
  int height, width, origin_h, origin_w, runs, halo;
};

// fprop and dgrad.
struct PlanesProblem {
  PlanesRows in;
  const void* filter;
  void* result;
  int out_h, out_w, channels;
  int channel_tiles, workers;
  // The filter's first tap in the order of the walk, and those below and
  // beside it.
  int first_tap, row_taps, col_taps;
  // All groups have `all_rows` rows of outputs, a worker `rows` of them.
  int runs, rows, all_rows, segments, all_segments;
  FastDivmod<uint32_t> height, across;
};

// wgrad: each worker's sums over its groups, [worker][tap][channel].
struct PlanesWgradProblem {
  PlanesRows x, dy;
  float* partials;
  void* dw;
  int channels;
  int channel_tiles, workers;
  int batch;
  // All groups have `all_rows` rows of outputs, a worker `rows` of them.
  int runs, rows, all_rows, segments, all_segments;
  FastDivmod<uint32_t> height, across;
};

}  // namespace jax_convbatch::direct
