// SPDX-License-Identifier: Apache-2.0
// Layers of one input channel of f32, a warp for the rows of an image; see
// one_channel_rows.cuh. Host only.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_ONE_CHANNEL_ONE_CHANNEL_ROWS_H_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_ONE_CHANNEL_ONE_CHANNEL_ROWS_H_

#include "cuda/sm90/problem/conv.h"
#include "cuda/sm90/problem/fused_backward.h"

namespace jax_convbatch::hopper {

// Whether the kernels take the geometry; their bits are one_channel.cu's.
bool HasOneRows(const ConvGeometry& g, Type type);

// fprop by a plan of the path kOneChannel.
cudaError_t RunOneRowsFprop(const ConvCall& call, Stage stage,
                            cudaStream_t stream);

// The backward pass with relu in one pass.
int64_t OneRowsWorkspace(const ConvGeometry& g, int multiprocessors);
cudaError_t RunOneRowsBackward(const FusedBackwardCall& call,
                               int multiprocessors, Stage stage,
                               cudaStream_t stream);

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_ONE_CHANNEL_ONE_CHANNEL_ROWS_H_
