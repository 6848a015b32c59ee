// SPDX-License-Identifier: Apache-2.0
// Launches of norm_act_tiles.cuh: dgrad, and what the activation and the norm
// before the convolution make of it.
#include "cuda/sm90/kernels/norm_act/norm_act_launch.cuh"

namespace jax_convbatch::hopper {

cudaError_t NormActGradient(const NormActGradientCall& call, Stage stage,
                            cudaStream_t stream) {
  const ConvGeometry g = DgradAsFprop(call.g);
  const HaloShape s = HaloShapeOf(g);
  const int n = call.plan.tile_n;
  NormActProblem problem{};
  if (!MakeHaloProblem(g, call.type, /*dgrad=*/true, n, s, call.dy, call.w,
                       &problem) ||
      !EncodeHaloBlocks(&problem.output, g, call.type, s, n, call.gradients,
                        Copy::kStore) ||
      !EncodeHaloBlocks(&problem.activated, g, call.type, s, n, call.activated,
                        Copy::kStore) ||
      !EncodeHaloBlocks(&problem.residual, g, call.type, s, n, call.x,
                        Copy::kLoad)) {
    return cudaErrorInvalidValue;
  }
  problem.has_residual = true;
  problem.scale = call.scale, problem.shift = call.shift;
  problem.factor_step = call.by_sample ? problem.k : 0;
  problem.partials = call.partials;
  problem.activation = call.activation;
  return LaunchNormAct<Contiguous::kReduction>(call.type, problem, call.plan,
                                               stage, stream);
}

}  // namespace jax_convbatch::hopper
