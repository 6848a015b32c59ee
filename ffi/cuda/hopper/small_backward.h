// The backward pass of a small f32 layer with relu in one pass: 3x3 filters at
// stride 1, outputs as large as the image, 16 or 32 channels on either side.
// Host only, but for the grid.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_SMALL_BACKWARD_H_
#define JAX_CONVBATCH_CUDA_HOPPER_SMALL_BACKWARD_H_

#include "cuda/hopper/layer_backward.h"

namespace jax_convbatch::hopper {

// Neighbouring fours of dy that a tile has, at most.
inline constexpr int kMostSmallFours = 2304;

// A tile in shared memory: its images and their pixels; the places that there
// are for them, with those of zeros before, between and after; the first
// pixel's place; and the sixteens of places from there to the last pixel's.
struct SmallGrid {
  int images, pixels, places, first, sixteens;
};

bool HasSmallBackward(const ConvGeometry& g, Type type);
int64_t SmallBackwardWorkspace(const ConvGeometry& g, int multiprocessors);

cudaError_t SmallBackward(const LayerBackwardCall& call, int multiprocessors,
                          Stage stage, cudaStream_t stream);

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_SMALL_BACKWARD_H_
