// SPDX-License-Identifier: Apache-2.0
// The backward pass of a layer with relu, 1x1 filters of bf16 or f16 and many
// output channels: dgrad and wgrad that each read dy and y's bitmask and make
// dz of them in registers. See fused_backward.h.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_FUSED_BACKWARD_MASKED_BACKWARD_H_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_FUSED_BACKWARD_MASKED_BACKWARD_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/sm90/problem/fused_backward.h"

namespace jax_convbatch::hopper {

// Tiles of dw: output channels by input channels.
inline constexpr int kMaskedRows = 128, kMaskedColumns = 256;

// Whether there are kernels for the channels, and pixels enough.
bool HasMaskedBackward(const ConvGeometry& g, Type type);

// Runs of the pixels that wgrad sums apart.
int MaskedSplits(const ConvGeometry& g, int multiprocessors);

int64_t MaskedBackwardWorkspace(const ConvGeometry& g, int multiprocessors);

cudaError_t MaskedBackward(const FusedBackwardCall& call, int multiprocessors,
                           Stage stage, cudaStream_t stream);

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_FUSED_BACKWARD_MASKED_BACKWARD_H_
