// SPDX-License-Identifier: Apache-2.0
// Launches of stem_tf32.cuh.
#include "cuda/common/most_shared.h"
#include "cuda/sm90/kernels/few_channels/few_channels_launch.cuh"
#include "cuda/sm90/kernels/few_channels/stem_tf32.cuh"
#include "cuda/sm90/kernels/few_channels/stem_tf32_plan.h"
#include "cuda/sm90/problem/given_epilogue.h"

namespace jax_convbatch::hopper {
namespace {

template <int kSteps, bool kLayer>
cudaError_t Launch(const ConvCall& call, const StemProblem& p, Stage stage,
                   cudaStream_t stream) {
  const auto kernel = &StemKernel<StemConfig<kSteps, kLayer>>;
  const cudaError_t raised = RaiseSharedMemory(kernel, kMostShared);
  if (raised != cudaSuccess || stage == Stage::kPrepare) return raised;
  const int bytes = static_cast<int>(StemBytes(call.g, p.band.tile));
  kernel<<<call.plan.blocks, kStemThreads, bytes, stream>>>(p,
                                                            EpilogueOf(call));
  return cudaGetLastError();
}

template <int kSteps>
cudaError_t Launch(const ConvCall& call, const StemProblem& p, Stage stage,
                   cudaStream_t stream) {
  return call.epilogue != nullptr
             ? Launch<kSteps, true>(call, p, stage, stream)
             : Launch<kSteps, false>(call, p, stage, stream);
}

}  // namespace

cudaError_t StemTf32(const ConvCall& given, bool dgrad, Stage stage,
                     cudaStream_t stream) {
  const ConvGeometry g = dgrad ? DgradAsFprop(given.g) : given.g;
  const ConvCall call{g,         given.type,   given.plan,      given.lhs,
                      given.rhs, given.result, given.workspace, given.epilogue};
  const ConvGeometry halves = InHalves(g);
  StemProblem p{};
  p.band = MakeFewChannelsProblem({halves, call.type, call.plan, call.lhs,
                                   call.rhs, call.result, call.workspace},
                                  false);
  p.w = static_cast<const float*>(call.rhs);
  p.y = static_cast<float*>(call.result);
  p.length = static_cast<int>(g.taps() * g.C);
  p.flipped = dgrad ? static_cast<int>(g.C) : 0;
  p.shares = FastDivmod<uint32_t>((g.K + 63) / 64);
  p.apart = StemApart(g);
  switch (StemSteps(g)) {
    case 3:
      return Launch<3>(call, p, stage, stream);
    case 5:
      return Launch<5>(call, p, stage, stream);
    case 8:
      return Launch<8>(call, p, stage, stream);
    case 10:
      return Launch<10>(call, p, stage, stream);
    case 14:
      return Launch<14>(call, p, stage, stream);
    case 19:
      return Launch<19>(call, p, stage, stream);
    case 25:
      return Launch<25>(call, p, stage, stream);
    case 46:
      return Launch<46>(call, p, stage, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace jax_convbatch::hopper
