#include "cuda/hopper/conv.h"
#include "cuda/hopper/conv_tf32.h"
#include "cuda/hopper/launch.cuh"
#include "cuda/hopper/wgrad_kernel.cuh"
#include "cuda/hopper/wgrad_launch.h"

namespace jax_convbatch::hopper {
namespace {

template <typename Config>
cudaError_t Launch(const WgradProblem& problem, Stage stage,
                   cudaStream_t stream) {
  const bool whole = problem.tiles % problem.blocks == 0;
  const auto kernel = &WgradKernel<Config>;
  cudaError_t error = RaiseSharedMemory(kernel, Config::kSharedBytes);
  if (error != cudaSuccess) return error;
  if (stage == Stage::kPrepare) {
    cudaFuncAttributes loads;
    return whole ? error : cudaFuncGetAttributes(&loads, &AddPieces<Config>);
  }
  kernel<<<problem.blocks, kThreads, Config::kSharedBytes, stream>>>(problem);
  error = cudaGetLastError();
  if (error != cudaSuccess || whole) return error;
  AddPieces<Config>
      <<<problem.tiles * Config::kQuads, kConsumers * kWarpgroup, 0, stream>>>(
          problem);
  return cudaGetLastError();
}

template <typename T>
cudaError_t Run(const ConvCall& call, Stage stage, cudaStream_t stream) {
  WgradProblem problem{};
  if (!MakeWgradProblem(call, &problem)) return cudaErrorInvalidValue;
  auto launch = [&](auto config) {
    return Launch<decltype(config)>(problem, stage, stream);
  };
  const int m = call.plan.tile_m, n = call.plan.tile_n;
  if (m == 128 && n == 64) return launch(WgradConfig<T, 128, 64, 9>());
  if (m == 128 && n == 128) return launch(WgradConfig<T, 128, 128, 7>());
  if (m == 128 && n == 256) return launch(WgradConfig<T, 128, 256, 4>());
  if (m == 256 && n == 64) return launch(WgradConfig<T, 256, 64, 5>());
  if (m == 256 && n == 128) return launch(WgradConfig<T, 256, 128, 4>());
  return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t Wgrad(const ConvCall& call, Stage stage, cudaStream_t stream) {
  switch (call.type) {
    case Type::kBf16:
      return Run<__nv_bfloat16>(call, stage, stream);
    case Type::kF16:
      return Run<__half>(call, stage, stream);
    default:
      return WgradTf32(call, stage, stream);
  }
}

}  // namespace jax_convbatch::hopper
