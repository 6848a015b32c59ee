// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <utility>

#include "cuda/sm90/kernels/conv/conv_tf32_launch.cuh"
#include "cuda/sm90/kernels/conv/transpose_filter.h"
#include "cuda/sm90/problem/dense_output.h"

namespace jax_convbatch::hopper {

// fprop, dgrad, and fprop by dgrad's kernels, of a filter that is transposed
// before.
inline cudaError_t RunFpropTf32(const ConvCall& call, Stage stage,
                                cudaStream_t stream) {
  const std::array<SubproblemAxes, 1> subs = {FpropSubproblem(call.g)};
  return RunConvTf32<Contiguous::kRows, 1, kOneGroup>(
      call, InputOf(call.g), OutputOf(call.g), subs, kTf32Block, stage, stream);
}

inline cudaError_t RunDgradTf32(const ConvCall& call, Stage stage,
                                cudaStream_t stream) {
  const auto subs = DgradSubproblems(call.g);
  const Activations in = OutputOf(call.g), out = InputOf(call.g);
  const int box_c = call.plan.tile_n;  // all rows of a tile's filter
  return IsDense(subs)
             ? RunConvTf32<Contiguous::kReduction, 1, kOneGroup>(
                   call, in, out, subs, box_c, stage, stream)
             : RunConvTf32<Contiguous::kReduction, kMaxSubproblems, kOneGroup>(
                   call, in, out, subs, box_c, stage, stream);
}

inline cudaError_t RunTransposedTf32(const ConvCall& call, Stage stage,
                                     cudaStream_t stream) {
  const cudaError_t error =
      TransposeFilter(call.g, call.rhs, call.workspace, stage, stream);
  if (error != cudaSuccess) return error;
  ConvGeometry of_filter = call.g;
  std::swap(of_filter.C, of_filter.K);
  const ConvCall product = {of_filter,      call.type,   call.plan, call.lhs,
                            call.workspace, call.result, nullptr};
  const std::array<SubproblemAxes, 1> subs = {FpropSubproblem(call.g)};
  return RunConvTf32<Contiguous::kReduction, 1, kOneGroup>(
      product, InputOf(call.g), OutputOf(call.g), subs, call.plan.tile_n, stage,
      stream);
}

}  // namespace jax_convbatch::hopper
