// SPDX-License-Identifier: Apache-2.0
// y = columns w + bias on Hopper tensor cores, f32 as TF32, from a transposed
// filter: so it goes to the multiplier as it lies, not through registers.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/sm90/problem/conv.h"

namespace jax_convbatch::hopper {

// Tiles of tile_m x tile_n on `blocks` thread blocks, which no bit depends on.
struct ColumnGemmPlan {
  int tile_m, tile_n, blocks;
};

// `images`: of a 1x1 convolution, columns as channels, which PlanFprop of TF32
// takes.
ColumnGemmPlan PlanColumnGemm(const ConvGeometry& images, int multiprocessors);

struct ColumnGemmCall {
  const ConvGeometry& images;
  ColumnGemmPlan plan;
  const float* columns;
  const float* filter;  // [K, C]
  const float* bias;    // [K], or null
  float* y;
};

// cudaErrorInvalidValue where the driver refuses a tensor map. The kernel may
// start before the one before it in the stream has ended, and waits for it.
cudaError_t RunColumnGemm(const ColumnGemmCall& call, Stage stage,
                          cudaStream_t stream);

}  // namespace jax_convbatch::hopper
