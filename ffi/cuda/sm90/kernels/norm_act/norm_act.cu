// SPDX-License-Identifier: Apache-2.0
// Launches of norm_act_tiles.cuh: fprop.
#include "cuda/sm90/kernels/norm_act/norm_act_launch.cuh"

namespace jax_convbatch::hopper {

cudaError_t NormActFprop(const NormActCall& call, Stage stage,
                         cudaStream_t stream) {
  const ConvGeometry& g = call.g;
  const HaloShape s = HaloShapeOf(g);
  const int n = call.plan.tile_n;
  NormActProblem problem{};
  if (!MakeHaloProblem(g, call.type, /*dgrad=*/false, n, s, call.x, call.w,
                       &problem) ||
      !EncodeHaloBlocks(&problem.output, g, call.type, s, n, call.y,
                        Copy::kStore)) {
    return cudaErrorInvalidValue;
  }
  problem.has_residual = call.residual != nullptr;
  if (problem.has_residual &&
      !EncodeHaloBlocks(&problem.residual, g, call.type, s, n, call.residual,
                        Copy::kLoad)) {
    return cudaErrorInvalidValue;
  }
  problem.scale = call.scale, problem.shift = call.shift;
  problem.factor_step = call.by_sample ? problem.c : 0;
  problem.bias = call.bias;
  problem.partials = call.partials;
  problem.activation = call.activation;
  return LaunchNormAct<Contiguous::kRows>(call.type, problem, call.plan, stage,
                                          stream);
}

}  // namespace jax_convbatch::hopper
