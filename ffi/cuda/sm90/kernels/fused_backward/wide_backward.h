// The backward pass of a layer with relu, 1x1 filters of bf16 or f16 and many
// output channels: dgrad and wgrad that each read dy and y's signs and make dz
// of them in registers. See layer_backward.h.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_FUSED_BACKWARD_WIDE_BACKWARD_H_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_FUSED_BACKWARD_WIDE_BACKWARD_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/sm90/problem/layer_backward.h"

namespace jax_convbatch::hopper {

// Tiles of dw: output channels by input channels.
inline constexpr int kWideRows = 128, kWideColumns = 256;

// Whether there are kernels for the channels, and pixels enough.
bool HasWideBackward(const ConvGeometry& g, Type type);

// Runs of the pixels that wgrad sums apart.
int WideSplits(const ConvGeometry& g, int multiprocessors);

int64_t WideBackwardWorkspace(const ConvGeometry& g, int multiprocessors);

cudaError_t WideBackward(const LayerBackwardCall& call, int multiprocessors,
                         Stage stage, cudaStream_t stream);

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_FUSED_BACKWARD_WIDE_BACKWARD_H_
