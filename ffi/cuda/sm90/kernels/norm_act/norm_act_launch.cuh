// SPDX-License-Identifier: Apache-2.0
// What the launches of norm_act_tiles.cuh share.
#pragma once

#include "cuda/sm90/kernels/halo/halo_launch.cuh"
#include "cuda/sm90/kernels/norm_act/norm_act.h"
#include "cuda/sm90/kernels/norm_act/norm_act_tiles.cuh"

namespace jax_convbatch::hopper {

// The kernel of a plan's tiles, fprop or the gradient.
template <typename T, Contiguous kWeights>
cudaError_t LaunchNormActTiles(const NormActProblem& problem,
                               const NormActPlan& plan, Stage stage,
                               cudaStream_t stream) {
  constexpr bool kGradient = kWeights == Contiguous::kReduction;
  using Policy =
      std::conditional_t<kGradient, NormActGradientTiles, NormActTiles>;
  auto launch = [&](auto config) {
    return LaunchHaloKernel<decltype(config)>(problem, plan.blocks, stage,
                                              stream);
  };
  switch (plan.tile_n) {
    case 64:
      return launch(
          HaloConfig<T, kWeights, 64, 4, kGradient ? 6 : 8, Policy>());
    case 96:
      return launch(HaloConfig<T, kWeights, 96, 4, 5, Policy>());
    case 128:
      return launch(HaloConfig<T, kWeights, 128, kGradient ? 3 : 4,
                               kGradient ? 4 : 5, Policy>());
    case 160:
      return launch(
          HaloConfig<T, kWeights, 160, kGradient ? 2 : 3, 4, Policy>());
    default:
      return cudaErrorInvalidValue;
  }
}

template <Contiguous kWeights>
cudaError_t LaunchNormAct(Type type, const NormActProblem& problem,
                          const NormActPlan& plan, Stage stage,
                          cudaStream_t stream) {
  const auto launch = type == Type::kBf16
                          ? &LaunchNormActTiles<__nv_bfloat16, kWeights>
                          : &LaunchNormActTiles<__half, kWeights>;
  return launch(problem, plan, stage, stream);
}

}  // namespace jax_convbatch::hopper
