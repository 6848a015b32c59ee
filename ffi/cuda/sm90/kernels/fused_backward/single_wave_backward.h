// SPDX-License-Identifier: Apache-2.0
// The backward pass of a small layer with relu and 1x1 filters of bf16 or f16
// in one kernel: some blocks have tiles of dx, the others tiles of dw and db,
// and each makes what it needs of dz in registers. See fused_backward.h.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_FUSED_BACKWARD_SINGLE_WAVE_BACKWARD_H_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_FUSED_BACKWARD_SINGLE_WAVE_BACKWARD_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/sm90/problem/fused_backward.h"

namespace jax_convbatch::hopper {

inline constexpr int kSingleWaveBackwardColumns =
    128;  // input channels of a tile of dw
inline constexpr int kSingleWaveBackwardMostSplits = 8;  // blocks of it

// Warpgroups of a block, each with 64 pixels of a tile of dx or 64 output
// channels of one of dw; blocks of an SM; input channels of a tile of dx;
// blocks of a tile of dw, a cluster that adds its sums; which tiles begin.
struct SingleWaveBackwardTiling {
  int groups, blocks, dx_channels, splits;
  bool dw_first;
};

// Whether it is the kernel for a 1x1 layer, as far as its sizes go.
bool HasSingleWaveBackward(const ConvGeometry& g, Type type);

SingleWaveBackwardTiling SingleWaveBackwardTilingOf(const ConvGeometry& g,
                                                    int multiprocessors);

cudaError_t SingleWaveBackward(const FusedBackwardCall& call,
                               int multiprocessors, Stage stage,
                               cudaStream_t stream);

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_FUSED_BACKWARD_SINGLE_WAVE_BACKWARD_H_
