// Launches plans of wave_plan.h.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_WAVE_LAUNCH_CUH_
#define JAX_CONVBATCH_CUDA_HOPPER_WAVE_LAUNCH_CUH_

#include <iterator>
#include <type_traits>
#include <vector>

#include "cuda/hopper/conv_launch.cuh"
#include "cuda/hopper/wave_kernel.cuh"
#include "cuda/hopper/wave_plan.h"

namespace jax_convbatch::hopper {

using WaveParts = std::vector<PartAxes>;

// Rows of the filter's boxes.
template <Contiguous kWeights>
int FilterChannels(const Plan& plan) {
  return kWeights == Contiguous::kRows ? 64 : plan.tile_n;
}

template <typename Config, int kParts, typename After>
cudaError_t LaunchWave(ConvProblem<kParts> problem, const After& after,
                       Stage stage, cudaStream_t stream) {
  const auto kernel = &WaveKernel<Config, kParts, After>;
  constexpr int kBytes = Config::kBarrierOffset + sizeof(WaveBarriers<Config>);
  const cudaError_t raised = RaiseSharedMemory(kernel, kBytes);
  if (raised != cudaSuccess || stage == Stage::kPrepare) return raised;
  const int blocks = problem.tiles / int(problem.parts);
  const int columns = problem.n_tiles;
  // Which come first, see WaveTile.
  problem.n_tiles = std::min(columns, blocks / columns);
  kernel<<<blocks, Config::kThreads, kBytes, stream>>>(problem, after);
  return cudaGetLastError();
}

// after: NoEpilogue or PlainEpilogue.
template <typename T, Contiguous kWeights, int kParts,
          typename After = NoEpilogue>
cudaError_t RunWave(const ConvCall& call, const Activations& in,
                    const Activations& out, const WaveParts& parts, Stage stage,
                    cudaStream_t stream, const After& after = {}) {
  if (!TakesWave(call.type, in, out, parts)) return cudaErrorInvalidValue;
  const int m = call.plan.tile_m, n = call.plan.tile_n;
  ConvProblem<kParts> problem{};
  const ConvBoxes boxes = {m, m, FilterChannels<kWeights>(call.plan),
                           kParts > 1 ? Output::kWalk : Output::kMatrix};
  if (!MakeConvProblem(call, in, out, parts, boxes, &problem)) {
    return cudaErrorInvalidValue;
  }
  auto of_groups = [&](auto groups) {
    constexpr int kGroups = decltype(groups)::value;
    auto launch = [&](auto pixels) {
      using Config = WaveConfig<T, decltype(pixels)::value, kGroups, kWeights>;
      return LaunchWave<Config>(problem, after, stage, stream);
    };
    static_assert(std::size(kWavePixels) == 6);
    switch (m) {
      case kWavePixels[0]:
        return launch(std::integral_constant<int, kWavePixels[0]>());
      case kWavePixels[1]:
        return launch(std::integral_constant<int, kWavePixels[1]>());
      case kWavePixels[2]:
        return launch(std::integral_constant<int, kWavePixels[2]>());
      case kWavePixels[3]:
        return launch(std::integral_constant<int, kWavePixels[3]>());
      case kWavePixels[4]:
        return launch(std::integral_constant<int, kWavePixels[4]>());
      default:
        return launch(std::integral_constant<int, kWavePixels[5]>());
    }
  };
  return n == 64 ? of_groups(std::integral_constant<int, 1>())
                 : of_groups(std::integral_constant<int, 2>());
}

template <typename T, typename After = NoEpilogue>
cudaError_t RunWaveFprop(const ConvCall& call, Stage stage, cudaStream_t stream,
                         const After& after = {}) {
  return RunWave<T, Contiguous::kRows, 1>(call, InputOf(call.g),
                                          OutputOf(call.g), {FpropPart(call.g)},
                                          stage, stream, after);
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_WAVE_LAUNCH_CUH_
