// SPDX-License-Identifier: Apache-2.0
// Tiles of whole small images of f32 for 3x3 filters whose outputs are as large
// as the image, with 16 or 32 channels on either side. Host only, but for the
// struct.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_SMALL_SMALL_GRID_H_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_SMALL_SMALL_GRID_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "conv_geometry.h"

namespace jax_convbatch::hopper {

// A tile in shared memory: its images; the places that there are for their
// pixels, with those of zeros before, between and after; the first pixel's
// place; the places that are copied from there on; those from there to the last
// pixel's; and how many products of 64 places they make.
struct SmallGrid {
  int images, places, first, box, span, blocks;

  // Of a stage with so many channels: a multiple of 1024 bytes.
  __host__ __device__ int words(int channels) const {
    return (places * channels + 255) / 256 * 256;
  }
};

// Whether a convolution is one of these, whatever its image's size up to 128.
bool IsGridded(const ConvGeometry& g);

SmallGrid GridOf(const ConvGeometry& g, int64_t images);

// The boxes of a tensor of f32 of the grid's images, with a column and a row of
// zeros more, rounded to TF32 or as they are; false where the driver refuses.
bool EncodeGrid(CUtensorMap* map, const ConvGeometry& g, const SmallGrid& grid,
                int64_t channels, const void* data, bool rounded);

// The largest grid that `fits`, of no more blocks than `blocks` where it has
// several images, and no more images than leave `takers` some each.
template <typename Fits>
SmallGrid LargestGrid(const ConvGeometry& g, int blocks, int64_t takers,
                      Fits&& fits) {
  const int64_t each = (g.N + takers - 1) / takers;
  SmallGrid grid = GridOf(g, 1);
  while (grid.images < each) {
    const SmallGrid next = GridOf(g, grid.images + 1);
    if (next.blocks > blocks || !fits(next)) break;
    grid = next;
  }
  return grid;
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_SMALL_SMALL_GRID_H_
