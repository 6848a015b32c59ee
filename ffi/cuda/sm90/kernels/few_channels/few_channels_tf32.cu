// SPDX-License-Identifier: Apache-2.0
// Launches of few_channels_tf32.cuh.
#include "cuda/common/most_shared.h"
#include "cuda/sm90/arch/launch.cuh"
#include "cuda/sm90/kernels/few_channels/few_channels_tf32.cuh"
#include "cuda/sm90/kernels/few_channels/few_channels_tf32_launch.cuh"
#include "cuda/sm90/problem/given_epilogue.h"

namespace jax_convbatch::hopper {
namespace {

template <int kSteps, bool kLayer>
cudaError_t Launch(const ConvCall& call, const FewChannelsTf32Problem& p,
                   Stage stage, cudaStream_t stream) {
  const auto kernel =
      &FewChannelsTf32Kernel<FewChannelsTf32Config<kSteps, kLayer>>;
  const cudaError_t raised = RaiseSharedMemory(kernel, kMostShared);
  if (raised != cudaSuccess || stage == Stage::kPrepare) return raised;
  const Epilogue epilogue = EpilogueOf(call);
  kernel<<<call.plan.blocks, kFewChannelsTf32Threads, 2 * p.band * 4, stream>>>(
      p, epilogue);
  return cudaGetLastError();
}

template <int kSteps>
cudaError_t Launch(const ConvCall& call, const FewChannelsTf32Problem& p,
                   Stage stage, cudaStream_t stream) {
  return call.epilogue != nullptr
             ? Launch<kSteps, true>(call, p, stage, stream)
             : Launch<kSteps, false>(call, p, stage, stream);
}

}  // namespace

cudaError_t FewChannelsTf32(const ConvCall& call, bool dgrad, Stage stage,
                            cudaStream_t stream) {
  const FewChannelsTf32Shape shape(call.g, dgrad);
  FewChannelsTf32Problem p = MakeFewChannelsTf32Problem(shape);
  p.in = static_cast<const float*>(call.lhs);
  p.w = static_cast<const float*>(call.rhs);
  p.out = static_cast<float*>(call.result);
  p.flipped = dgrad;
  p.shares = FastDivmod<uint32_t>(shape.shares());
  switch (shape.steps) {
    case 2:
      return Launch<2>(call, p, stage, stream);
    case 4:
      return Launch<4>(call, p, stage, stream);
    case 5:
      return Launch<5>(call, p, stage, stream);
    case 6:
      return Launch<6>(call, p, stage, stream);
    case 8:
      return Launch<8>(call, p, stage, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace jax_convbatch::hopper
