// SPDX-License-Identifier: Apache-2.0
// Copies whose outermost coordinate is a group (Im2colWalk::groups).
#pragma once

#include "cuda/sm90/arch/ptx.cuh"
#include "cuda/sm90/copy/copies_3d.cuh"

namespace jax_convbatch::hopper {

// Pixels of a box that stores some of a sub-problem's, at most so many: no box
// may hang over the last image, as it would go on in the next group's first.
__host__ __device__ inline int GroupStorePixels(int pixels, int most) {
  const int divisor = pixels & -pixels;
  return divisor < most ? divisor : most;
}

__device__ __forceinline__ void LoadGroupIm2col(uint32_t to,
                                                const CUtensorMap& map,
                                                uint32_t barrier, int c, int w,
                                                int h, int n, int group,
                                                int offset_w, int offset_h) {
  // The engine takes the group for an image, and n for the outermost axis.
  Load3dIm2col(to, map, barrier, c, w, h, n, group, offset_w, offset_h, 0);
}

__device__ __forceinline__ void StoreGroupIm2col(const CUtensorMap& map,
                                                 uint32_t from, int c, int w,
                                                 int h, int n, int group) {
  Store3dIm2col(map, from, c, w, h, n, group);
}

}  // namespace jax_convbatch::hopper
