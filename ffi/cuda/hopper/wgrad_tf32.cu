#include "cuda/hopper/conv_tf32.h"
#include "cuda/hopper/launch.cuh"
#include "cuda/hopper/wgrad_launch.h"
#include "cuda/hopper/wgrad_tf32_kernel.cuh"

namespace jax_convbatch::hopper {

cudaError_t WgradTf32(const ConvCall& call, Stage stage, cudaStream_t stream) {
  WgradProblem problem{};
  if (!MakeWgradProblem(call, &problem)) return cudaErrorInvalidValue;
  auto launch = [&](auto config) {
    using Config = decltype(config);
    const bool whole = problem.tiles % problem.blocks == 0;
    const auto kernel = &WgradTf32Kernel<Config>;
    cudaError_t error = RaiseSharedMemory(kernel, Config::kSharedBytes);
    if (error != cudaSuccess) return error;
    if (stage == Stage::kPrepare) {
      cudaFuncAttributes loads;
      return whole ? error
                   : cudaFuncGetAttributes(&loads, &AddPiecesTf32<Config>);
    }
    kernel<<<problem.blocks, Config::kThreads, Config::kSharedBytes, stream>>>(
        problem);
    error = cudaGetLastError();
    if (error != cudaSuccess || whole) return error;
    AddPiecesTf32<Config><<<problem.tiles * Config::kQuads,
                            Config::kMultiplierThreads, 0, stream>>>(problem);
    return cudaGetLastError();
  };
  const int m = call.plan.tile_m, n = call.plan.tile_n;
  if (m == 256 && n == 128) return launch(WgradTf32Config<256, 128, 4>());
  if (m == 256 && n == 64) return launch(WgradTf32Config<256, 64, 5>());
  if (m == kTapRowTile && n == 64) {
    return launch(WgradTf32Config<kTapRowTile, 64, 10, 3>());
  }
  if (m == kTapRowTile && n == 128) {
    return launch(WgradTf32Config<kTapRowTile, 128, 8, 3>());
  }
  if (m == 128 && n == 64) return launch(WgradTf32Config<128, 64, 8>());
  if (m == 128 && n == 32) return launch(WgradTf32Config<128, 32, 8>());
  return cudaErrorInvalidValue;
}

}  // namespace jax_convbatch::hopper
