// What the kernels of wide_backward.h share.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_WIDE_PROBLEM_CUH_
#define JAX_CONVBATCH_CUDA_HOPPER_WIDE_PROBLEM_CUH_

#include <cuda.h>

#include <cstdint>

#include "cuda/hopper/pipeline.cuh"
#include "cuda/hopper/wgmma_wide_registers.cuh"

namespace jax_convbatch::hopper {

// Where the pixels of y lie in x: a stride of 1 has one part.
struct WidePixels {
  int parts, part_h[4], part_w[4];
  int step_h, step_w, rows, cols;
};

// Where a tile's first pixel lies in x.
struct WidePixel {
  int h, w, image;

  __device__ WidePixel(const WidePixels& pixels, int pixel) {
    const int row = pixel / pixels.cols;
    image = row / pixels.rows;
    w = (pixel - row * pixels.cols) * pixels.step_w;
    h = (row - image * pixels.rows) * pixels.step_h;
  }
};

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_WIDE_PROBLEM_CUH_
