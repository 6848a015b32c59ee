// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/kernels/single_wave/single_wave.h"
#include "cuda/sm90/kernels/single_wave/single_wave_launch.cuh"
#include "cuda/sm90/kernels/single_wave/single_wave_split_k_kernel.cuh"

namespace jax_convbatch::hopper {
namespace {

template <typename Config>
cudaError_t Launch(const ConvProblem<1>& problem, Stage stage,
                   cudaStream_t stream) {
  const auto kernel = &SingleWaveSplitKKernel<Config>;
  constexpr int kBytes =
      Config::kBarrierOffset + sizeof(SingleWaveSplitKBarriers<Config>);
  const cudaError_t raised = RaiseSharedMemory(kernel, kBytes);
  if (raised != cudaSuccess || stage == Stage::kPrepare) return raised;
  return LaunchKernel(kernel,
                      {int64_t{kSumKSlices} * problem.tiles, Config::kThreads,
                       Start::kInOrder, kBytes, kSumKSlices},
                      stream, problem,
                      MakeKSlices(problem.sub[0], kSumKSlices));
}

template <typename T, Contiguous kWeights>
cudaError_t Run(const ConvCall& call, const Activations& in,
                const Activations& out, const SubproblemAxes& sub, Stage stage,
                cudaStream_t stream) {
  const int m = call.plan.tile_m;
  ConvProblem<1> problem{};
  if (!MakeConvProblem(
          call, in, out, SingleWaveSubproblems{sub},
          {m, m, FilterChannels<kWeights>(call.plan), Output::kThreads},
          &problem)) {
    return cudaErrorInvalidValue;
  }
  return WithSingleWaveTile<kSplitKTiles>(call.plan, [&](auto pixels,
                                                         auto groups) {
    return Launch<SingleWaveSplitKConfig<T, decltype(pixels)::value,
                                         decltype(groups)::value, kWeights>>(
        problem, stage, stream);
  });
}

template <typename T>
cudaError_t Run(const ConvCall& call, bool dgrad, Stage stage,
                cudaStream_t stream) {
  const Activations x = InputOf(call.g), y = OutputOf(call.g);
  return dgrad ? Run<T, Contiguous::kReduction>(
                     call, y, x, DgradSubproblems(call.g)[0], stage, stream)
               : Run<T, Contiguous::kRows>(call, x, y, FpropSubproblem(call.g),
                                           stage, stream);
}

}  // namespace

cudaError_t SingleWaveSplitK(const ConvCall& call, bool dgrad, Stage stage,
                             cudaStream_t stream) {
  return call.type == Type::kBf16
             ? Run<__nv_bfloat16>(call, dgrad, stage, stream)
             : Run<__half>(call, dgrad, stage, stream);
}

}  // namespace jax_convbatch::hopper
