// SPDX-License-Identifier: Apache-2.0
// Launches of norm_act_kernel.cuh: fprop.
#include "cuda/sm90/kernels/norm_act/norm_act_launch.cuh"

namespace jax_convbatch::hopper {

cudaError_t NormActFprop(const NormActCall& call, Stage stage,
                         cudaStream_t stream) {
  const ConvGeometry& g = call.g;
  const NormActShape s = NormActShapeOf(g);
  const int n = call.plan.tile_n;
  NormActProblem problem{};
  problem.has_residual = call.residual != nullptr;
  if (!MakeNormActProblem(g, call.type, call.plan, s, call.x, &problem) ||
      !EncodeTiled(&problem.weights, call.type, call.w, {g.K, g.C, g.taps()},
                   {64, 64, 1}) ||
      !EncodeBlocks(&problem.output, g, call.type, s, n, call.y,
                    Copy::kStore) ||
      (problem.has_residual && !EncodeBlocks(&problem.residual, g, call.type, s,
                                             n, call.residual, Copy::kLoad))) {
    return cudaErrorInvalidValue;
  }
  problem.scale = call.scale, problem.shift = call.shift;
  problem.factor_step = call.by_sample ? problem.c : 0;
  problem.bias = call.bias;
  problem.partials = call.partials;
  problem.activation = call.activation;
  return LaunchNormAct<false>(call.type, problem, call.plan, stage, stream);
}

}  // namespace jax_convbatch::hopper
