// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/kernels/conv/transpose_filter.h"
#include "cuda/sm90/kernels/halo/halo_run.cuh"

namespace jax_convbatch::hopper {
namespace {

template <int kN, int kHalos, int kStages>
using F32Config =
    HaloConfig<float, Contiguous::kReduction, kN, kHalos, kStages, F32Tiles>;

cudaError_t Run(const ConvCall& call, const ConvGeometry& g, bool dgrad,
                const void* filter, Stage stage, cudaStream_t stream) {
  HaloProblem problem{};
  if (!MakeLayerProblem(call, g, HaloShapeOf(g), dgrad, filter, &problem)) {
    return cudaErrorInvalidValue;
  }
  auto launch = [&](auto config) {
    return LaunchHaloKernel<decltype(config)>(problem, call.plan.blocks, stage,
                                              stream);
  };
  switch (call.plan.tile_n) {
    case 64:
      return launch(F32Config<64, 3, 12>());
    case 96:
      return launch(F32Config<96, 2, 9>());
    case 128:
      return launch(F32Config<128, 2, 6>());
    case 160:
      return launch(F32Config<160, 2, 4>());
    default:
      return cudaErrorInvalidValue;
  }
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
