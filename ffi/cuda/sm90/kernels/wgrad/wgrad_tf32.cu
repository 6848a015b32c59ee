// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/arch/launch.cuh"
#include "cuda/sm90/epilogue/multiply_then_add.cuh"
#include "cuda/sm90/kernels/conv/conv_tf32.h"
#include "cuda/sm90/kernels/wgrad/wgrad_halo_tf32_kernel.cuh"
#include "cuda/sm90/kernels/wgrad/wgrad_launch.cuh"
#include "cuda/sm90/kernels/wgrad/wgrad_launch.h"
#include "cuda/sm90/kernels/wgrad/wgrad_tf32_launch.cuh"
#include "cuda/sm90/problem/tensor_map.h"

namespace jax_convbatch::hopper {
namespace {

// False where the driver refuses.
bool MakeHaloProblem(const ConvCall& call, HaloProblem* problem) {
  const ConvGeometry& g = call.g;
  const HaloTiling tiling(g, call.type);
  *problem = HaloProblemOf(call, tiling);
  constexpr int64_t kBlock = kTf32Block;
  return EncodeStrided(&problem->x, call.type, call.lhs,
                       {kBlock, g.N, g.C / kBlock, g.W, g.H},
                       {g.H * g.W * g.C, kBlock, g.C, g.W * g.C},
                       {kTf32Block, tiling.images, 2, tiling.strip + 2, 1}) &&
         EncodeStrided(&problem->dy, call.type, call.rhs,
                       {kBlock, g.N, g.K / kBlock, g.Q, g.P},
                       {g.P * g.Q * g.K, kBlock, g.K, g.Q * g.K},
                       {kTf32Block, tiling.images, 2, tiling.strip, 1});
}

template <int kStrip, int kWidth>
cudaError_t RunHalo(const ConvCall& call, Stage stage, cudaStream_t stream) {
  using Config = HaloTf32Config<kStrip, kWidth>;
  HaloProblem problem{};
  if (!MakeHaloProblem(call, &problem)) return cudaErrorInvalidValue;
  const auto kernel = &WgradHaloTf32Kernel<Config>;
  // The same for strips of either length.
  const auto adds = &AddWgradPartials<HaloTf32Config<7, kWidth>, 1>;
  const bool whole = problem.tiles % problem.blocks == 0;
  const cudaError_t error = RaiseSharedMemory(kernel, Config::kSharedBytes);
  if (error != cudaSuccess) return error;
  return MultiplyThenAdd(
      stage, whole, adds,
      [&] {
        return LaunchOne(kernel, problem.blocks, Config::kThreads,
                         Config::kSharedBytes, stream, problem);
      },
      [&] {
        return LaunchAddWgradPartials(
            adds, 1, int64_t{Config::kQuads} * Config::kConsumed, problem,
            stream);
      });
}

template <int kWidth>
cudaError_t Run(const ConvCall& call, Stage stage, cudaStream_t stream) {
  if (call.plan.tile_m == kHaloM && call.plan.tile_n == kHaloN) {
    return HaloTiling(call.g, call.type).strip == 7
               ? RunHalo<7, kWidth>(call, stage, stream)
               : RunHalo<8, kWidth>(call, stage, stream);
  }
  return RunTf32Tiles<kWidth>(call, stage, stream);
}

}  // namespace

cudaError_t WgradTf32(const ConvCall& call, Stage stage, cudaStream_t stream) {
  if (call.g.groups == 1) return Run<kOneGroup>(call, stage, stream);
  return IsNarrowTf32(call.g, call.type) ? Run<kNarrowTf32>(call, stage, stream)
                                         : Run<kBoxGroups>(call, stage, stream);
}

}  // namespace jax_convbatch::hopper
