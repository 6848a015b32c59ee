// SPDX-License-Identifier: Apache-2.0
// 2-D convolutions of f32 as it is (not as TF32) on the ordinary cores, without
// columns in memory. Any GPU of compute capability 8.0 or later.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "conv_geometry.h"
#include "cuda/common/stage.h"

namespace jax_convbatch::simt {

using jax_convbatch::Stage;

enum class Op { kFprop, kDgrad, kWgrad };

// What a stage of shared memory holds of a sum.
inline constexpr int kDepth = 16;

// Of outputs that use the same taps, which a launch forms.
inline constexpr int kMostSubproblems = 16;

// How a convolution runs. fprop and dgrad: tiles of tile_m pixels by tile_n
// channels, whose sums are formed in `splits` K slices by as many blocks, or in
// the same K slices by one block: bits do not depend on the plan. wgrad: tiles
// of tile_m filter rows (taps x C) by tile_n channels, whose pixels `splits`
// blocks share: bits depend on it.
struct Plan {
  int tile_m, tile_n, splits, blocks;
  int64_t workspace;
  // Whether it is at least as fast as columns in memory.
  bool preferred;
  // On tensor cores, by bf16x6.h, with so many K slices.
  bool bf16x6 = false;
  int k_slices = 1;
};

// Every plan that may be chosen on a GPU of so many SMs, the one to take where
// nothing was measured first. Empty where the kernels cannot run: they take 2-D
// convolutions of one group without input dilation, C and K multiples of 4,
// strides up to 8. Needs no GPU.
std::vector<Plan> Plans(Op op, const ConvGeometry& g, int multiprocessors,
                        bool hopper);

// "128x64" (tile_m x tile_n), "128x64/8" with splits.
std::string PlanName(const Plan& plan);

// The plan of that name, or the first for an empty one.
std::optional<Plan> FindPlan(Op op, const ConvGeometry& g, int multiprocessors,
                             bool hopper, std::string_view name);

// fprop: lhs x, rhs w, result y. dgrad: lhs dy, rhs w, result dx. wgrad: lhs x,
// rhs dy, result dw. All channels last (w: HWIO), all aligned to 16 bytes.
struct Call {
  const ConvGeometry& g;
  Plan plan;
  const void *lhs, *rhs;
  void *result, *workspace;
};

cudaError_t Run(Op op, const Call& call, Stage stage, cudaStream_t stream);

}  // namespace jax_convbatch::simt
