// SPDX-License-Identifier: Apache-2.0
// fprop and dgrad of small f32 images. Host only.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_SMALL_SMALL_GRID_CONV_H_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_SMALL_SMALL_GRID_CONV_H_

#include "cuda/sm90/problem/conv.h"
#include "cuda/sm90/problem/op.h"

namespace jax_convbatch::hopper {

// Whether there is a kernel; its bits are not those of small_tf32.cu.
bool HasSmallGridConv(Op op, const ConvGeometry& g);

cudaError_t SmallGridConv(Op op, const ConvCall& call, Stage stage,
                          cudaStream_t stream);

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_SMALL_SMALL_GRID_CONV_H_
