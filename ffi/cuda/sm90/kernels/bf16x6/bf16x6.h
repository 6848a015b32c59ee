// SPDX-License-Identifier: Apache-2.0
// f32 at full precision on Hopper's tensor cores: each number as three of bf16,
// six products of them for one (bf16x6_terms.cuh). 2-D convolutions of one
// group without input dilation, C and K multiples of 4.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "conv_geometry.h"
#include "cuda/common/stage.h"
#include "cuda/sm90/problem/op.h"

namespace jax_convbatch::hopper {

// fprop and dgrad: tiles of tile_m pixels by tile_n channels, whose sums are
// formed in `k_slices`, by one block, or, where `split`, by as many. wgrad:
// tiles of tile_m filter rows by tile_n channels, whose pixels `blocks` share.
struct Bf16x6Plan {
  int tile_m, tile_n, k_slices, blocks;
  bool split;
  int64_t workspace;
};

// Every plan that may be chosen, the one to take where nothing was measured
// first; fprop's and dgrad's all give the same bits, wgrad has one. Empty where
// the kernels cannot run, or would be slow, whatever N. Needs no GPU.
std::vector<Bf16x6Plan> Bf16x6Plans(Op op, const ConvGeometry& g,
                                    int multiprocessors);

// Of the filter's terms; after them come the K slices' sums, or wgrad's
// partials.
int64_t Bf16x6FilterBytes(Op op, const ConvGeometry& g);

// lhs, rhs and result as in conv.h.
struct Bf16x6Call {
  const ConvGeometry& g;
  Bf16x6Plan plan;
  const void *lhs, *rhs;
  void *result, *workspace;
};

cudaError_t RunBf16x6(Op op, const Bf16x6Call& call, Stage stage,
                      cudaStream_t stream);

}  // namespace jax_convbatch::hopper
