// What the host tells the kernels of wgrad_short_kernel.cuh.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_WGRAD_SHORT_PROBLEM_H_
#define JAX_CONVBATCH_CUDA_HOPPER_WGRAD_SHORT_PROBLEM_H_

#include <cuda.h>

#include <cstdint>

#include "cuda/fast_divmod.h"
#include "cuda/hopper/wgrad_problem.h"

namespace jax_convbatch::hopper {

// Every block has one share of one tile: splits is not 0.
struct WgradShortProblem : WgradProblem {
  FastDivmod<uint32_t> by_cluster;
};

// Where the three taps of a filter row share their pixels: a step is a strip of
// a row of some images. x: [H, W, N, C], a strip and 2 pixels a box; dy:
// [P, Q, N, K], a strip a box. by_rows: P; by_cols: strips of a row.
struct WgradRowProblem : WgradShortProblem {
  int height;
};

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_WGRAD_SHORT_PROBLEM_H_
