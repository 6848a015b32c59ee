// What the host tells the kernels of narrow_conv.cuh and narrow_wgrad.cuh.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_NARROW_PROBLEM_H_
#define JAX_CONVBATCH_CUDA_HOPPER_NARROW_PROBLEM_H_

#include <cstdint>

#include "cuda/fast_divmod.h"

namespace jax_convbatch::hopper {

// out[pixel, :] = in[pixel, :] w. Of dgrad w lies the other way round: by the
// channels of the result.
struct NarrowProblem {
  const void *in, *w;
  void* out;
  int64_t pixels;
  int in_channels, out_channels;
  bool flipped;
  FastDivmod<uint32_t> divide_row;  // by the elements of a row of w
};

// dw = x^T dy, from pixel to pixel. Rows of a product are the channels of one
// of the two operands, `a`, and its columns those of the other, `b`.
struct NarrowWgradProblem {
  const void *a, *b;
  float* pieces;  // [blocks, C, K]
  int64_t pixels;
  int a_channels, b_channels;
  bool flipped;  // a is dy
};

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_NARROW_PROBLEM_H_
