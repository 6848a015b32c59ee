// Launches plans of wave_tf32_plan.h.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_WAVE_TF32_LAUNCH_CUH_
#define JAX_CONVBATCH_CUDA_HOPPER_WAVE_TF32_LAUNCH_CUH_

#include <algorithm>
#include <iterator>
#include <type_traits>
#include <vector>

#include "cuda/hopper/conv_launch.cuh"
#include "cuda/hopper/wave_plan.h"
#include "cuda/hopper/wave_tf32_kernel.cuh"
#include "cuda/hopper/wave_tf32_plan.h"

namespace jax_convbatch::hopper {

template <typename Config, int kParts, typename After>
cudaError_t LaunchWaveTf32(const ConvCall& call, const Activations& in,
                           const Activations& out,
                           const std::vector<PartAxes>& parts, Stage stage,
                           cudaStream_t stream, const After& after) {
  constexpr bool kRows = Config::kWeights == Contiguous::kRows;
  ConvProblem<kParts> problem{};
  const ConvBoxes boxes = {Config::kBoxPixels, Config::kStorePixels,
                           kRows ? kTf32Block : Config::kN,
                           kTf32Output<Config, kParts>};
  if (!MakeConvProblem(call, in, out, parts, boxes, &problem)) {
    return cudaErrorInvalidValue;
  }
  const auto kernel = &WaveTf32Kernel<Config, kParts, After>;
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

// Calls run() with a constant for each of kWaveTf32Pixels.
template <int kIndex = 0, typename Run>
cudaError_t WithWavePixels(int pixels, Run run) {
  if constexpr (kIndex == std::size(kWaveTf32Pixels)) {
    return cudaErrorInvalidValue;
  } else {
    constexpr int kPixels = kWaveTf32Pixels[kIndex];
    return pixels == kPixels ? run(std::integral_constant<int, kPixels>())
                             : WithWavePixels<kIndex + 1>(pixels, run);
  }
}

template <Contiguous kWeights, int kParts, typename After = NoEpilogue>
cudaError_t RunWaveTf32(const ConvCall& call, const Activations& in,
                        const Activations& out,
                        const std::vector<PartAxes>& parts, Stage stage,
                        cudaStream_t stream, const After& after = {}) {
  if (!TakesWave(call.type, in, out, parts)) return cudaErrorInvalidValue;
  return WithWavePixels(call.plan.tile_m, [&](auto pixels) {
    auto of_groups = [&](auto groups) {
      constexpr int kM = decltype(pixels)::value;
      constexpr int kGroups = decltype(groups)::value;
      if constexpr (kParts == 1 && kGroups == 1) {
        if (TapsShareInWave(parts[0].w, 64)) {
          return LaunchWaveTf32<WaveTf32Config<kM, kGroups, kWeights, 3>,
                                kParts>(call, in, out, {WithReach(parts[0])},
                                        stage, stream, after);
        }
      }
      return LaunchWaveTf32<WaveTf32Config<kM, kGroups, kWeights>, kParts>(
          call, in, out, parts, stage, stream, after);
    };
    return call.plan.tile_n == 64 ? of_groups(std::integral_constant<int, 1>())
                                  : of_groups(std::integral_constant<int, 2>());
  });
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_WAVE_TF32_LAUNCH_CUH_
