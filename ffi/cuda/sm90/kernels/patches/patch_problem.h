// SPDX-License-Identifier: Apache-2.0
// What the host tells the kernel of patch_dgrad.cuh.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_PATCHES_PATCH_PROBLEM_H_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_PATCHES_PATCH_PROBLEM_H_

#include <cuda.h>

#include <cstdint>

#include "cuda/common/fast_divmod.h"

namespace jax_convbatch::hopper {

// dx[patch, filter row, S C] = dy[patch, K] w[filter row, S C, K]: a patch of
// dx is R runs of S C elements, and the runs of a row of patches follow each
// other.
struct PatchProblem {
  CUtensorMap dy;  // [patches, K], 128 x 64 a box
  CUtensorMap w;   // [R S C, K], columns x 64 a box
  void* dx;
  int run;       // S C
  int rows;      // R
  int together;  // filter rows of a tile
  int steps;     // of 64 output channels
  int groups;    // tiles side by side: R / together, rounded up
  int patches;
  FastDivmod<uint32_t> across;  // patches of a row: Q
  int tiles;
};

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_PATCHES_PATCH_PROBLEM_H_
