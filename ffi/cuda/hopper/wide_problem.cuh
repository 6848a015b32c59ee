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

// Two elements of 16 bits, all ones where the highest bit of byte j of `low`,
// of `high` is set, else zeros.
template <int j>
__device__ __forceinline__ uint32_t PairMask(uint32_t low, uint32_t high) {
  uint32_t mask;
  asm("prmt.b32 %0, %1, %2, %3;"
      : "=r"(mask)
      : "r"(low), "r"(high), "n"((8 + j) * 0x0011 + (12 + j) * 0x1100));
  return mask;
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_WIDE_PROBLEM_CUH_
