// SPDX-License-Identifier: Apache-2.0
// The backward pass of a layer with relu in one pass over dy and x: of 1x1
// filters of bf16 or f16, of stride 1 or 2, for so few output channels that dw
// of a slice of the input's is in a block's registers; and of other 1x1
// filters, see masked_backward.h.
//
// dz = dy where y > 0, else 0; dx, dw and db are dgrad, wgrad and the bias
// gradient of dz.
#ifndef JAX_CONVBATCH_CUDA_SM90_PROBLEM_FUSED_BACKWARD_H_
#define JAX_CONVBATCH_CUDA_SM90_PROBLEM_FUSED_BACKWARD_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/sm90/problem/conv.h"

namespace jax_convbatch::hopper {

inline constexpr int kBackwardPixels = 64;  // of a tile

// bitmask: as Epilogue's. dz may be null: it is then nowhere in memory.
struct FusedBackwardCall {
  ConvGeometry g;
  Type type;
  const void *bitmask, *x, *w, *dy;
  void *dx, *dw, *db, *dz, *workspace;
};

// Whether there is a kernel for the geometry.
bool HasFusedBackward(const ConvGeometry& g, Type type);

// Whether it is done by the two kernels of masked_backward.h.
bool TakesMaskedBackward(const ConvGeometry& g, Type type);

// Of 1x1 filters: input channels of a slice, and blocks of each slice.
int64_t DwStationarySlice(const ConvGeometry& g);
int DwStationaryBlocks(const ConvGeometry& g, int multiprocessors);

int64_t FusedBackwardWorkspace(const ConvGeometry& g, Type type,
                               int multiprocessors);

cudaError_t FusedBackward(const FusedBackwardCall& call, int multiprocessors,
                          Stage stage, cudaStream_t stream);

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_PROBLEM_FUSED_BACKWARD_H_
