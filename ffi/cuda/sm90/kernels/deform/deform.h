// SPDX-License-Identifier: Apache-2.0
// Deformable convolutions on Hopper tensor cores, without columns in memory.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_DEFORM_DEFORM_H_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_DEFORM_DEFORM_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>

#include "conv_geometry.h"
#include "cuda/common/positions.h"
#include "cuda/sm90/problem/conv.h"

namespace jax_convbatch::hopper {

inline constexpr int kDeformPixels = 128;  // of a tile

// Tiles of 128 pixels x tile_n channels, each the work of `split` thread
// blocks that take parts of the reduction. Only `blocks` depends on N; `split`
// changes bits.
struct DeformPlan {
  int tile_n, split, blocks;
};

// The plan of fprop for a GPU of so many SMs, or nothing where the kernel
// cannot run: it takes two spatial axes, C and K (with groups: of a group)
// multiples of 16 bytes, and channels of a group and of an offset group
// multiples of 128 bytes where there are several. Needs no GPU.
std::optional<DeformPlan> PlanDeformFprop(const ConvGeometry& g, Type type,
                                          int64_t offset_groups,
                                          int multiprocessors);

// bias: [K], or null. All aligned to 16 bytes.
struct DeformCall {
  const ConvGeometry& g;
  Type type;
  int64_t offset_groups;
  DeformPlan plan;
  const void* x;
  Positions positions;
  const void* w;
  const void* bias;
  void* y;
};

// cudaErrorInvalidValue where the driver refuses a tensor map.
cudaError_t DeformFprop(const DeformCall& call, Stage stage,
                        cudaStream_t stream);

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_DEFORM_DEFORM_H_
