// SPDX-License-Identifier: Apache-2.0
// Launches of few_channels_fprop.cuh.
#include <algorithm>

#include "cuda/common/most_shared.h"
#include "cuda/sm90/kernels/few_channels/few_channels_fprop.cuh"
#include "cuda/sm90/kernels/few_channels/few_channels_launch.cuh"

namespace jax_convbatch::hopper {
namespace {

template <typename Config, typename EpilogueT>
cudaError_t LaunchFprop(const ConvCall& call, const FewChannelsProblem& problem,
                        const EpilogueT& epilogue, Stage stage,
                        cudaStream_t stream) {
  const auto kernel = &FewChannelsFpropKernel<Config, EpilogueT>;
  const int bytes = static_cast<int>(
      FewChannelsFpropBytes(call.g, problem.tile, problem.share));
  const cudaError_t raised = RaiseSharedMemory(kernel, kMostShared);
  if (raised != cudaSuccess || stage == Stage::kPrepare) return raised;
  const dim3 grid(std::min(problem.tiles, call.plan.blocks),
                  (problem.K + problem.share - 1) / problem.share);
  kernel<<<grid, kFewChannelsThreads, bytes, stream>>>(problem, epilogue);
  return cudaGetLastError();
}

template <typename T, bool kOdd, typename EpilogueT>
cudaError_t RunFprop(const ConvCall& call, const FewChannelsProblem& problem,
                     const EpilogueT& epilogue, Stage stage,
                     cudaStream_t stream) {
  auto launch = [&](auto config) {
    return LaunchFprop<decltype(config)>(call, problem, epilogue, stage,
                                         stream);
  };
  switch (FewChannelsSteps(FewChannelsShape(call.g))) {
    case 2:
      return launch(FewChannelsFpropConfig<T, 2, kOdd>());
    case 4:
      return launch(FewChannelsFpropConfig<T, 4, kOdd>());
    case 7:
      return launch(FewChannelsFpropConfig<T, 7, kOdd>());
    case 10:
      return launch(FewChannelsFpropConfig<T, 10, kOdd>());
    case 13:
      return launch(FewChannelsFpropConfig<T, 13, kOdd>());
    case kFullFewChannelsSteps:
      if constexpr (!kOdd) {
        return launch(
            FewChannelsFpropConfig<T, kFullFewChannelsSteps, false, false>());
      }
      return cudaErrorInvalidValue;
    default:
      return cudaErrorInvalidValue;
  }
}

template <typename EpilogueT>
cudaError_t RunFprop(const ConvCall& call, const FewChannelsProblem& problem,
                     const EpilogueT& epilogue, Stage stage,
                     cudaStream_t stream) {
  const bool odd = FewChannelsShape(call.g).odd;
  auto run = [&](auto zero) {
    using T = decltype(zero);
    if constexpr (!EpilogueT::kPresent) {
      if (odd) return RunFprop<T, true>(call, problem, epilogue, stage, stream);
    }
    return RunFprop<T, false>(call, problem, epilogue, stage, stream);
  };
  return call.type == Type::kBf16 ? run(__nv_bfloat16()) : run(__half());
}

// `flipped`: see FewChannelsProblem.
cudaError_t Run(const ConvCall& call, int flipped, Stage stage,
                cudaStream_t stream) {
  FewChannelsProblem problem = MakeFewChannelsProblem(call, false);
  problem.w = static_cast<const uint16_t*>(call.rhs);
  problem.taps = static_cast<int>(call.g.taps());
  problem.flipped = flipped;
  problem.y = static_cast<uint16_t*>(call.result);
  problem.share = static_cast<int>(
      FewChannelsShare(call.g, problem.tiles, call.plan.blocks));
  problem.store_by_map = call.g.K % 8 == 0;
  if (problem.store_by_map &&
      !EncodeOutput(&problem.y_map, call, call.result)) {
    return cudaErrorInvalidValue;
  }
  if (call.epilogue != nullptr) {
    return RunFprop(call, problem, *call.epilogue, stage, stream);
  }
  return RunFprop(call, problem, NoEpilogue(), stage, stream);
}

}  // namespace

cudaError_t FewChannelsFprop(const ConvCall& call, Stage stage,
                             cudaStream_t stream) {
  return Run(call, 0, stage, stream);
}

cudaError_t FewChannelsDgrad(const ConvCall& dgrad, Stage stage,
                             cudaStream_t stream) {
  const ConvGeometry g = DgradAsFprop(dgrad.g);
  return Run({g, dgrad.type, dgrad.plan, dgrad.lhs, dgrad.rhs, dgrad.result,
              dgrad.workspace},
             static_cast<int>(g.C), stage, stream);
}

}  // namespace jax_convbatch::hopper
