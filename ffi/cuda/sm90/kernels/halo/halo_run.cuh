// SPDX-License-Identifier: Apache-2.0
// Launches of halo_kernel.cuh for a convolution or a layer.
#pragma once

#include "cuda/sm90/kernels/halo/halo.h"
#include "cuda/sm90/kernels/halo/halo_launch.cuh"
#include "cuda/sm90/kernels/halo/layer_tiles.cuh"

namespace jax_convbatch::hopper {

// Halos and stages: what fits in shared memory.
template <typename T, Contiguous kWeights>
cudaError_t LaunchLayerTiles(const HaloProblem& problem, const Plan& plan,
                             Stage stage, cudaStream_t stream) {
  constexpr bool kDgrad = kWeights == Contiguous::kReduction;
  auto launch = [&](auto config) {
    return LaunchHaloKernel<decltype(config)>(problem, plan.blocks, stage,
                                              stream);
  };
  switch (plan.tile_n) {
    case 64:
      return launch(HaloConfig<T, kWeights, 64, 3, 12, LayerTiles>());
    case 96:
      return launch(
          HaloConfig<T, kWeights, 96, 3, kDgrad ? 8 : 6, LayerTiles>());
    case 128:
      return launch(HaloConfig<T, kWeights, 128, 3, 6, LayerTiles>());
    case 160:
      return launch(
          HaloConfig<T, kWeights, 160, 2, kDgrad ? 6 : 5, LayerTiles>());
    default:
      return cudaErrorInvalidValue;
  }
}

// Of a call, with `filter` in place of its own. `g`: of fprop, or of dgrad as
// fprop of dy.
inline bool MakeLayerProblem(const ConvCall& call, const ConvGeometry& g,
                             const HaloShape& s, bool dgrad, const void* filter,
                             HaloProblem* problem) {
  const int n = call.plan.tile_n;
  return MakeHaloProblem(g, call.type, dgrad, n, s, call.lhs, filter,
                         problem) &&
         EncodeHaloBlocks(&problem->output, g, call.type, s, n, call.result,
                          Copy::kStore);
}

// False where the driver refuses.
inline bool SetHaloEpilogue(const ConvCall& call, const HaloShape& s,
                            HaloProblem* problem) {
  if (call.epilogue == nullptr) return true;
  const Epilogue& e = *call.epilogue;
  problem->channel_scale = e.scale;
  problem->bias = e.bias;
  problem->activation = e.activation;
  problem->bitmask = e.bitmask;
  problem->has_residual = e.residual != nullptr;
  problem->keeps_z = e.z != nullptr;
  // f32 as it is: to load it would round it to TF32.
  auto encode = [&](CUtensorMap* map, const void* data) {
    return data == nullptr ||
           EncodeHaloBlocks(map, call.g, call.type, s, call.plan.tile_n, data,
                            Copy::kStore);
  };
  return encode(&problem->residual, e.residual) && encode(&problem->z, e.z);
}

// Of 16-bit types.
template <Contiguous kWeights>
cudaError_t RunHalo(const ConvCall& call, const ConvGeometry& g, Stage stage,
                    cudaStream_t stream) {
  constexpr bool kDgrad = kWeights == Contiguous::kReduction;
  const HaloShape s = HaloShapeOf(g);
  HaloProblem problem{};
  if (!MakeLayerProblem(call, g, s, kDgrad, call.rhs, &problem) ||
      !SetHaloEpilogue(call, s, &problem)) {
    return cudaErrorInvalidValue;
  }
  const auto launch = call.type == Type::kBf16
                          ? &LaunchLayerTiles<__nv_bfloat16, kWeights>
                          : &LaunchLayerTiles<__half, kWeights>;
  return launch(problem, call.plan, stage, stream);
}

}  // namespace jax_convbatch::hopper
