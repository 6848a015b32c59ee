// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/kernels/conv/conv3d.h"
#include "cuda/sm90/kernels/conv/conv_launch.cuh"

namespace jax_convbatch::hopper {
namespace {

// False where the driver refuses. The filter is copied in boxes of `box_c`
// input channels.
bool Make3dProblem(const ConvCall& call, const Axes3d& axes, int box_c,
                   ConvProblem<1>* problem) {
  const ConvGeometry& g = call.g;
  const SubproblemAxis& d = axes.d;
  const int m = call.plan.tile_m, n = call.plan.tile_n;
  problem->channels = static_cast<int>(axes.out.c);
  problem->channel_blocks = static_cast<int>((axes.in.c + 63) / 64);
  problem->filter_width = static_cast<int>(g.S);
  problem->n_tiles = static_cast<int>((axes.out.c + n - 1) / n);
  problem->subs = 1;
  problem->depth = {d.taps, static_cast<int>(g.R * g.S),
                    static_cast<int>(d.count), static_cast<int>(d.input),
                    d.input_step};
  ConvSubproblem& sub = problem->sub[0];
  SetAxes(axes.plane, axes.out.n, problem->channel_blocks * d.taps.count, &sub);
  problem->tiles = (sub.pixels + m - 1) / m * problem->n_tiles;
  return Encode3dIm2col(&sub.input, call.type, call.lhs, axes.walk(m)) &&
         EncodeTiled(&sub.output, call.type, call.result,
                     {axes.out.c, sub.pixels}, {64, 64}, Copy::kStore) &&
         EncodeTiled(&problem->weights, call.type, call.rhs,
                     {g.K, g.C, g.taps()}, {64, box_c, 1});
}

template <typename T, Contiguous kWeights>
cudaError_t Run(Op op, const ConvCall& call, Stage stage, cudaStream_t stream) {
  const int m = call.plan.tile_m, n = call.plan.tile_n;
  ConvProblem<1> problem{};
  if (!Make3dProblem(call, Axes3dOf(op, call.g), op == Op::kFprop ? 64 : n,
                     &problem)) {
    return cudaErrorInvalidValue;
  }
  auto launch = [&](auto config) {
    return LaunchConv<InDepth<decltype(config)>, 1>(
        problem, NoEpilogue{}, call.plan.blocks, stage, stream);
  };
  constexpr Schedule kPingPong = Schedule::kPingPong;
  if (m == 64 && n == 64) {
    return launch(ConvConfig<T, 64, 64, kPingPong, 12, 2, false, kWeights>());
  }
  if (m == 64 && n == 128) {
    return launch(ConvConfig<T, 64, 128, kPingPong, 8, 2, false, kWeights>());
  }
  if (m == 256 && n == 64) {
    return launch(ConvConfig<T, 256, 64, kPingPong, 4, 2, false, kWeights>());
  }
  if (m == 128 && n == 128) {
    return launch(ConvConfig<T, 128, 128, kPingPong, 6, 1, false, kWeights>());
  }
  return cudaErrorInvalidValue;
}

template <typename T>
cudaError_t Run(Op op, const ConvCall& call, Stage stage, cudaStream_t stream) {
  return op == Op::kFprop
             ? Run<T, Contiguous::kRows>(op, call, stage, stream)
             : Run<T, Contiguous::kReduction>(op, call, stage, stream);
}

}  // namespace

cudaError_t Run3d(Op op, const ConvCall& call, Stage stage,
                  cudaStream_t stream) {
  if (op == Op::kWgrad || call.epilogue != nullptr) {
    return cudaErrorInvalidValue;
  }
  switch (call.type) {
    case Type::kBf16:
      return Run<__nv_bfloat16>(op, call, stage, stream);
    case Type::kF16:
      return Run<__half>(op, call, stage, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace jax_convbatch::hopper
