// What the host tells the wgrad kernels: dw as a product of filter rows (taps x
// input channels) by output channels, summed over pixels.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_WGRAD_PROBLEM_H_
#define JAX_CONVBATCH_CUDA_HOPPER_WGRAD_PROBLEM_H_

#include <cuda.h>

#include <cstdint>

namespace jax_convbatch::hopper {

// Tiles are those of wgrad_tiling.h. The steps of all tiles lie in one line,
// cut evenly among the blocks of the launch. A tile that one block does whole
// goes to dw; the pieces of the others go to `pieces`, to be added in order.
struct WgradProblem {
  CUtensorMap x;   // im2col, 64 pixels a box
  CUtensorMap dy;  // tiled, [pixels, K], 64 x 64 a box
  void* dw;
  float* pieces;
  int C, K;
  int taps, filter_width, channel_blocks;
  int n_tiles, tiles;
  int steps;  // of a tile
  int blocks;
  int rows, cols;  // P, Q
  int base_h, base_w, step_h, step_w, dilation_h, dilation_w;

  // Where block b's share of the line begins.
  __device__ int64_t Begin(int64_t b) const {
    return b * tiles * steps / blocks;
  }
};

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_WGRAD_PROBLEM_H_
