// SPDX-License-Identifier: Apache-2.0
// Launches plans of single_wave_plan.h.
#pragma once

#include <algorithm>
#include <iterator>
#include <type_traits>
#include <vector>

#include "cuda/sm90/kernels/conv/conv_launch.cuh"
#include "cuda/sm90/kernels/single_wave/single_wave_kernel.cuh"
#include "cuda/sm90/kernels/single_wave/single_wave_plan.h"

namespace jax_convbatch::hopper {

using SingleWaveSubproblems = std::vector<SubproblemAxes>;

// Rows of the filter's boxes.
template <Contiguous kWeights>
int FilterChannels(const Plan& plan) {
  return kWeights == Contiguous::kRows ? 64 : plan.tile_n;
}

// Calls run() with constants for a plan's tile, one of kTiles: its pixels, and
// warpgroups of 64 channels.
template <const auto& kTiles, int kIndex = 0, typename Run>
cudaError_t WithSingleWaveTile(const Plan& plan, Run run) {
  if constexpr (kIndex == std::size(kTiles)) {
    return cudaErrorInvalidValue;
  } else {
    constexpr SingleWaveSize kTile = kTiles[kIndex];
    if (plan.tile_m == kTile.pixels && plan.tile_n == kTile.channels) {
      return run(std::integral_constant<int, kTile.pixels>(),
                 std::integral_constant<int, kTile.channels / 64>());
    }
    return WithSingleWaveTile<kTiles, kIndex + 1>(plan, run);
  }
}

// kernel: SingleWaveKernel or, in f32, SingleWaveTf32Kernel.
template <typename Config, int kSubs, typename EpilogueT>
cudaError_t LaunchSingleWave(void (*kernel)(ConvProblem<kSubs>, EpilogueT),
                             ConvProblem<kSubs> problem,
                             const EpilogueT& epilogue, Stage stage,
                             cudaStream_t stream) {
  constexpr int kBytes =
      Config::kBarrierOffset + sizeof(SingleWaveBarriers<Config>);
  const cudaError_t raised = RaiseSharedMemory(kernel, kBytes);
  if (raised != cudaSuccess || stage == Stage::kPrepare) return raised;
  const int blocks = problem.tiles / int(problem.subs);
  const int columns = problem.n_tiles;
  // Which come first, see SingleWaveTile.
  problem.n_tiles = std::min(columns, blocks / columns);
  kernel<<<blocks, Config::kThreads, kBytes, stream>>>(problem, epilogue);
  return cudaGetLastError();
}

// epilogue: NoEpilogue or PlainEpilogue.
template <typename T, Contiguous kWeights, int kSubs,
          typename EpilogueT = NoEpilogue>
cudaError_t RunSingleWave(const ConvCall& call, const Activations& in,
                          const Activations& out,
                          const SingleWaveSubproblems& subs, Stage stage,
                          cudaStream_t stream, const EpilogueT& epilogue = {}) {
  if (!TakesSingleWave(subs) || (kSubs > 1 && Is3d(call.g))) {
    return cudaErrorInvalidValue;
  }
  const int m = call.plan.tile_m;
  ConvProblem<kSubs> problem{};
  const ConvBoxes boxes = {m, m, FilterChannels<kWeights>(call.plan),
                           kSubs > 1 ? Output::kWalk : Output::kMatrix};
  if (!MakeConvProblem(call, in, out, subs, boxes, &problem)) {
    return cudaErrorInvalidValue;
  }
  return WithSingleWaveTile<kSingleWaveTiles>(call.plan, [&](auto pixels,
                                                             auto groups) {
    using Config = SingleWaveConfig<T, decltype(pixels)::value,
                                    decltype(groups)::value, kWeights>;
    return LaunchSingleWave<Config>(&SingleWaveKernel<Config, kSubs, EpilogueT>,
                                    problem, epilogue, stage, stream);
  });
}

template <typename T, typename EpilogueT = NoEpilogue>
cudaError_t RunSingleWaveFprop(const ConvCall& call, Stage stage,
                               cudaStream_t stream,
                               const EpilogueT& epilogue = {}) {
  return RunSingleWave<T, Contiguous::kRows, 1>(
      call, InputOf(call.g), OutputOf(call.g), {FpropSubproblem(call.g)}, stage,
      stream, epilogue);
}

}  // namespace jax_convbatch::hopper
