// SPDX-License-Identifier: Apache-2.0
// Depthwise filters of many taps and single steps, on Hopper: by the tensor
// cores, see depthwise_toeplitz.cuh.
#pragma once

#include "cuda/sm80/direct/direct.h"

namespace jax_convbatch::direct {

// Which of the kernels there are: see ToeplitzTiling.
struct ToeplitzKind {
  int row_blocks, runs, steps;
  bool sequence;
};

// A convolution as the kernels see it, host only.
struct ToeplitzShape {
  ToeplitzKind kind;
  int64_t in_h, in_w, out_h, out_w, filter_h, filter_w, pad_h, pad_w;
  int64_t part_h, part_w, down, across, items;
  int shared_bytes;
};

// Nothing where the kernels cannot run, or others are faster.
std::optional<ToeplitzShape> ToeplitzShapeOf(Op op, const ConvGeometry& g);
std::optional<Plan> PlanDepthwiseToeplitz(Op op, const ConvGeometry& g,
                                          Type type, int multiprocessors);
cudaError_t RunDepthwiseToeplitz(Op op, const Call& call, Stage stage,
                                 cudaStream_t stream);

}  // namespace jax_convbatch::direct
