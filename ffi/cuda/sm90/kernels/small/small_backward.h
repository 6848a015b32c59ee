// SPDX-License-Identifier: Apache-2.0
// The backward pass of a small f32 layer with relu in one pass: 3x3 filters at
// stride 1, outputs as large as the image, 16 or 32 channels on either side.
// Host only.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_SMALL_SMALL_BACKWARD_H_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_SMALL_SMALL_BACKWARD_H_

#include "cuda/sm90/problem/fused_backward.h"

namespace jax_convbatch::hopper {

inline constexpr int kSmallBackwardThreads = 256;
// Neighbouring fours that a tile's copy of dy has, at most.
inline constexpr int kMostSmallFours = 4096;

bool HasSmallBackward(const ConvGeometry& g, Type type);
int64_t SmallBackwardWorkspace(const ConvGeometry& g, int multiprocessors);

cudaError_t SmallBackward(const FusedBackwardCall& call, int multiprocessors,
                          Stage stage, cudaStream_t stream);

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_SMALL_SMALL_BACKWARD_H_
