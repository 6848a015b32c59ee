// SPDX-License-Identifier: Apache-2.0
// What the host tells the kernel of deformable convolutions.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_DEFORM_DEFORM_PROBLEM_H_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_DEFORM_DEFORM_PROBLEM_H_

#include <cuda.h>

#include <cstdint>

#include "cuda/common/fast_divmod.h"
#include "cuda/common/positions.cuh"

namespace jax_convbatch::hopper {

// fprop. The reduction of a tile goes in stages of 128 bytes of channels of one
// tap, all taps of some channels before the next channels: neighbouring taps
// read much the same pixels, which then lie in the L1.
struct DeformProblem {
  // [taps, C / groups, K]; where whole_boxes, [taps, boxes, C / groups, 128
  // bytes of K], so that one copy brings a stage's.
  CUtensorMap weights;
  bool whole_boxes;
  const void* x;
  Positions positions;  // [pixels, offset_groups, taps]
  PositionGrid grid;
  const void* bias;  // or null
  void* y;
  int channels;                          // of x
  int group_channels, group_outputs, K;  // C / groups, K / groups
  int pixels, offset_groups, taps;
  FastDivmod<uint32_t> image_pixels;     // P Q
  FastDivmod<uint32_t> image_row;        // Q
  FastDivmod<uint32_t> offset_channels;  // C / offset_groups
  FastDivmod<uint32_t> n_tiles;          // of a pixel, those of all groups
  FastDivmod<uint32_t> group_n_tiles;
  int tiles;
  int stages;  // of a tile
};

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_DEFORM_DEFORM_PROBLEM_H_
