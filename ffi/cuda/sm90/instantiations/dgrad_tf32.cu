// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <utility>

#include "cuda/sm90/kernels/conv/conv_tf32.h"
#include "cuda/sm90/kernels/conv/conv_tf32_launch.cuh"
#include "cuda/sm90/kernels/conv/transpose_filter.h"
#include "cuda/sm90/kernels/conv/transposed_plan.h"
#include "cuda/sm90/kernels/single_wave/single_wave_tf32.h"
#include "cuda/sm90/kernels/single_wave/single_wave_tf32_plan.h"
#include "cuda/sm90/problem/dense_output.h"

namespace jax_convbatch::hopper {
namespace {

template <int kSubs>
cudaError_t Run(const ConvCall& call, Stage stage, cudaStream_t stream) {
  const int box_c = call.plan.tile_n;  // all rows of a tile's filter
  return RunConvTf32<Contiguous::kReduction, kSubs>(
      call, OutputOf(call.g), InputOf(call.g), DgradSubproblems(call.g), box_c,
      stage, stream);
}

}  // namespace

cudaError_t DgradTf32(const ConvCall& call, Stage stage, cudaStream_t stream) {
  if (IsSingleWaveTf32(call.plan))
    return SingleWaveDgradTf32(call, stage, stream);
  return IsDense(DgradSubproblems(call.g))
             ? Run<1>(call, stage, stream)
             : Run<kMaxSubproblems>(call, stage, stream);
}

// Here, as the kernels are dgrad's.
cudaError_t FpropTransposedTf32(const ConvCall& call, Stage stage,
                                cudaStream_t stream) {
  const cudaError_t error =
      TransposeFilter(call.g, call.rhs, call.workspace, stage, stream);
  if (error != cudaSuccess) return error;
  ConvGeometry of_filter = call.g;
  std::swap(of_filter.C, of_filter.K);
  const ConvCall product = {of_filter,      call.type,   call.plan, call.lhs,
                            call.workspace, call.result, nullptr};
  const std::array<SubproblemAxes, 1> subs = {FpropSubproblem(call.g)};
  return RunConvTf32<Contiguous::kReduction, 1>(
      product, InputOf(call.g), OutputOf(call.g), subs, call.plan.tile_n, stage,
      stream);
}

}  // namespace jax_convbatch::hopper
