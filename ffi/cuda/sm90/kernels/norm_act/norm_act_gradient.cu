// SPDX-License-Identifier: Apache-2.0
// Launches of norm_act_kernel.cuh: dgrad, and what the activation and the norm
// before the convolution make of it.
#include "cuda/sm90/kernels/norm_act/norm_act_launch.cuh"

namespace jax_convbatch::hopper {
namespace {

template <typename T>
cudaError_t Dispatch(const NormActProblem& problem, const NormActPlan& plan,
                     Stage stage, cudaStream_t stream) {
  auto launch = [&](auto config) {
    return LaunchNormAct<decltype(config)>(problem, plan.blocks, stage, stream);
  };
  switch (plan.tile_n) {
    case 64:
      return launch(NormActConfig<T, 64, 4, 6, true>());
    case 96:
      return launch(NormActConfig<T, 96, 4, 5, true>());
    case 128:
      return launch(NormActConfig<T, 128, 3, 4, true>());
    case 160:
      return launch(NormActConfig<T, 160, 2, 4, true>());
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t NormActGradient(const NormActGradientCall& call, Stage stage,
                            cudaStream_t stream) {
  const ConvGeometry g = DgradAsFprop(call.g);
  const NormActShape s = NormActShapeOf(g);
  const int n = call.plan.tile_n;
  NormActProblem problem{};
  if (!MakeNormActProblem(g, call.type, call.plan, s, call.dy, &problem) ||
      !EncodeTiled(&problem.weights, call.type, call.w, {g.C, g.K, g.taps()},
                   {64, n, 1}) ||
      !EncodeBlocks(&problem.output, g, call.type, s, n, call.gradients,
                    Copy::kStore) ||
      !EncodeBlocks(&problem.activated, g, call.type, s, n, call.activated,
                    Copy::kStore) ||
      !EncodeBlocks(&problem.residual, g, call.type, s, n, call.x,
                    Copy::kLoad)) {
    return cudaErrorInvalidValue;
  }
  problem.has_residual = true;
  problem.scale = call.scale, problem.shift = call.shift;
  problem.factor_step = call.by_sample ? problem.k : 0;
  problem.partials = call.partials;
  problem.activation = call.activation;
  return call.type == Type::kBf16
             ? Dispatch<__nv_bfloat16>(problem, call.plan, stage, stream)
             : Dispatch<__half>(problem, call.plan, stage, stream);
}

}  // namespace jax_convbatch::hopper
