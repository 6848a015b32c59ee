// Tiles of whole small images of f32 for 3x3 filters whose outputs are as large
// as the image, with 16 or 32 channels on either side. Host only, but for the
// struct.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_SMALL_GRID_H_
#define JAX_CONVBATCH_CUDA_HOPPER_SMALL_GRID_H_

#include "conv_geometry.h"

namespace jax_convbatch::hopper {

// A tile in shared memory: its images and their pixels; the places that there
// are for them, with those of zeros before, between and after; the first
// pixel's place; and the sixteens of places from there to the last pixel's.
struct SmallGrid {
  int images, pixels, places, first, sixteens;
};

// Usable shared memory of a multiprocessor.
inline constexpr int64_t kGridShared = 226 << 10;

// Whether a convolution is one of these, whatever its image's size up to 128.
bool IsGridded(const ConvGeometry& g);

SmallGrid GridOf(const ConvGeometry& g, int64_t images);

// The largest grid that `fits`, of no more sixteens than `sixteens` where it
// has several images, and no more images than leave every multiprocessor some.
template <typename Fits>
SmallGrid LargestGrid(const ConvGeometry& g, int sixteens, int multiprocessors,
                      Fits&& fits) {
  const int64_t each = (g.N + multiprocessors - 1) / multiprocessors;
  SmallGrid grid = GridOf(g, 1);
  while (grid.images < each) {
    const SmallGrid next = GridOf(g, grid.images + 1);
    if (next.sixteens > sixteens || !fits(next)) break;
    grid = next;
  }
  return grid;
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_SMALL_GRID_H_
