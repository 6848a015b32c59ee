// SPDX-License-Identifier: Apache-2.0
// How small_backward.cu runs. Host only.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_SMALL_SMALL_BACKWARD_PLAN_H_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_SMALL_SMALL_BACKWARD_PLAN_H_

#include "cuda/sm90/kernels/small/small_backward.h"
#include "cuda/sm90/kernels/small/small_grid.h"

namespace jax_convbatch::hopper {

SmallGrid SmallGridOf(const ConvGeometry& g, int multiprocessors);

// Of shared memory.
int64_t SmallBackwardBytes(const ConvGeometry& g, const SmallGrid& grid);

int SmallBackwardBlocks(const ConvGeometry& g, const SmallGrid& grid,
                        int multiprocessors);

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_SMALL_SMALL_BACKWARD_PLAN_H_
