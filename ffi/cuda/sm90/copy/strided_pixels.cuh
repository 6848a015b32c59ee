// SPDX-License-Identifier: Apache-2.0
// Where the pixels of y lie in the x of a layer of 1x1 filters and stride 1 or
// 2, for the kernels of its backward pass.
#ifndef JAX_CONVBATCH_CUDA_SM90_COPY_STRIDED_PIXELS_CUH_
#define JAX_CONVBATCH_CUDA_SM90_COPY_STRIDED_PIXELS_CUH_

namespace jax_convbatch::hopper {

inline constexpr int kBackwardSubproblems = 4;

// Residue classes of the stride, and where they begin: the pixels that the
// filter meets, then those of dx that get zeros. Rows and columns are y's.
struct StridedPixels {
  int subs, sub_h[kBackwardSubproblems], sub_w[kBackwardSubproblems];
  int step_h, step_w, rows, cols;
};

// Where a tile's first pixel lies in x.
struct StridedPixel {
  int h, w, image;

  __device__ StridedPixel(const StridedPixels& pixels, int pixel) {
    const int row = pixel / pixels.cols;
    image = row / pixels.rows;
    w = (pixel - row * pixels.cols) * pixels.step_w;
    h = (row - image * pixels.rows) * pixels.step_h;
  }
};

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_COPY_STRIDED_PIXELS_CUH_
