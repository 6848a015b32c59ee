// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/kernels/conv/transpose_filter.h"
#include "cuda/sm90/kernels/halo/halo_run.cuh"

namespace jax_convbatch::hopper {
namespace {

template <int kValue>
inline constexpr std::integral_constant<int, kValue> kInt;

template <bool kLayer>
cudaError_t Launch(const HaloProblem& problem, const Plan& plan, Stage stage,
                   cudaStream_t stream) {
  auto launch = [&](auto channels, auto halos, auto stages) {
    using Config = HaloConfig<float, Contiguous::kReduction,
                              decltype(channels)::value, decltype(halos)::value,
                              decltype(stages)::value, F32Tiles<kLayer>>;
    return LaunchHaloKernel<Config>(problem, plan.blocks, stage, stream);
  };
  switch (plan.tile_n) {
    case 64:
      return launch(kInt<64>, kInt<3>, kInt<12>);
    case 96:
      return launch(kInt<96>, kInt<2>, kInt<9>);
    case 128:
      return launch(kInt<128>, kInt<2>, kInt<6>);
    case 160:
      return launch(kInt<160>, kInt<2>, kInt<4>);
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t Run(const ConvCall& call, const ConvGeometry& g, bool dgrad,
                const void* filter, Stage stage, cudaStream_t stream) {
  const HaloShape s = HaloShapeOf(g);
  HaloProblem problem{};
  if (!MakeLayerProblem(call, g, s, dgrad, filter, &problem) ||
      !SetHaloEpilogue(call, s, &problem)) {
    return cudaErrorInvalidValue;
  }
  const auto launch = call.epilogue != nullptr ? &Launch<true> : &Launch<false>;
  return launch(problem, call.plan, stage, stream);
}

}  // namespace

cudaError_t HaloFpropTf32(const ConvCall& call, Stage stage,
                          cudaStream_t stream) {
  const cudaError_t error =
      TransposeFilter(call.g, call.rhs, call.workspace, stage, stream);
  if (error != cudaSuccess) return error;
  return Run(call, call.g, /*dgrad=*/false, call.workspace, stage, stream);
}

cudaError_t HaloDgradTf32(const ConvCall& call, Stage stage,
                          cudaStream_t stream) {
  return Run(call, DgradAsFprop(call.g), /*dgrad=*/true, call.rhs, stage,
             stream);
}

}  // namespace jax_convbatch::hopper
