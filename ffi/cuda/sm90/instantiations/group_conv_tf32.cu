// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "cuda/sm90/kernels/conv/conv_tf32_launch.cuh"
#include "cuda/sm90/kernels/conv/group_conv.h"
#include "cuda/sm90/problem/dense_output.h"

namespace jax_convbatch::hopper {
namespace {

template <Contiguous kWeights, int kSubs, typename Subproblems>
cudaError_t Run(const ConvCall& call, const Activations& in,
                const Activations& out, const Subproblems& subs, int box_c,
                Stage stage, cudaStream_t stream) {
  return MapGroups(call.g) > 1 ? RunConvTf32<kWeights, kSubs, kAnyGroups>(
                                     call, in, out, subs, box_c, stage, stream)
                               : RunConvTf32<kWeights, kSubs, kBoxGroups>(
                                     call, in, out, subs, box_c, stage, stream);
}

template <int kSubs>
cudaError_t RunDgrad(const ConvCall& call, Stage stage, cudaStream_t stream) {
  const int box_c = call.plan.tile_n;  // as in dgrad_tf32.cu
  return Run<Contiguous::kReduction, kSubs>(
      call, OutputOf(call.g), InputOf(call.g), DgradSubproblems(call.g), box_c,
      stage, stream);
}

}  // namespace

cudaError_t GroupFpropTf32(const ConvCall& call, Stage stage,
                           cudaStream_t stream) {
  const std::array<SubproblemAxes, 1> subs = {FpropSubproblem(call.g)};
  return Run<Contiguous::kRows, 1>(call, InputOf(call.g), OutputOf(call.g),
                                   subs, kTf32Block, stage, stream);
}

cudaError_t GroupDgradTf32(const ConvCall& call, Stage stage,
                           cudaStream_t stream) {
  return IsDense(DgradSubproblems(call.g))
             ? RunDgrad<1>(call, stage, stream)
             : RunDgrad<kMaxSubproblems>(call, stage, stream);
}

}  // namespace jax_convbatch::hopper
