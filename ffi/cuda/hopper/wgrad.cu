#include "cuda/hopper/conv.h"
#include "cuda/hopper/conv_parts.h"
#include "cuda/hopper/launch.cuh"
#include "cuda/hopper/wgrad_kernel.cuh"
#include "cuda/hopper/wgrad_tiling.h"

namespace jax_convbatch::hopper {
namespace {

// False where the driver refuses.
bool MakeProblem(const ConvCall& call, WgradProblem* problem) {
  const ConvGeometry& g = call.g;
  const WgradTiling tiling(g, call.plan.tile_m, call.plan.tile_n);
  const PartAxes walk = FpropPart(g);
  problem->dw = call.result;
  problem->pieces = static_cast<float*>(call.workspace);
  problem->C = static_cast<int>(g.C);
  problem->K = static_cast<int>(g.K);
  problem->taps = static_cast<int>(g.taps());
  problem->filter_width = static_cast<int>(g.S);
  problem->channel_blocks = static_cast<int>(tiling.channel_blocks);
  problem->n_tiles = static_cast<int>(tiling.n_tiles);
  problem->tiles = static_cast<int>(tiling.tiles());
  problem->steps = static_cast<int>(tiling.steps);
  problem->blocks = call.plan.blocks;
  problem->rows = static_cast<int>(g.P);
  problem->cols = static_cast<int>(g.Q);
  problem->base_h = static_cast<int>(walk.h.input);
  problem->base_w = static_cast<int>(walk.w.input);
  problem->step_h = walk.h.input_step;
  problem->step_w = walk.w.input_step;
  problem->dilation_h = walk.h.taps.offset_step;
  problem->dilation_w = walk.w.taps.offset_step;
  return EncodeIm2col(&problem->x, call.type, call.lhs,
                      InputWalk(InputOf(g), walk, 64)) &&
         EncodeTiled(&problem->dy, call.type, call.rhs, {g.K, g.N * g.P * g.Q},
                     {64, 64});
}

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
  if (!MakeProblem(call, &problem)) return cudaErrorInvalidValue;
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
  return call.type == Type::kBf16 ? Run<__nv_bfloat16>(call, stage, stream)
                                  : Run<__half>(call, stage, stream);
}

}  // namespace jax_convbatch::hopper
