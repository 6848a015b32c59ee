// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/arch/launch.cuh"
#include "cuda/sm90/kernels/conv/conv_tf32.h"
#include "cuda/sm90/kernels/wgrad/wgrad_halo_kernel.cuh"
#include "cuda/sm90/kernels/wgrad/wgrad_launch.h"
#include "cuda/sm90/kernels/wgrad/wgrad_short.h"
#include "cuda/sm90/kernels/wgrad/wgrad_short_tiling.h"
#include "cuda/sm90/kernels/wgrad/wgrad_tiles_launch.cuh"
#include "cuda/sm90/problem/conv.h"

namespace jax_convbatch::hopper {
namespace {

// False where the driver refuses.
bool MakeHaloProblem(const ConvCall& call, HaloProblem* problem) {
  const ConvGeometry& g = call.g;
  const HaloTiling tiling(g, call.type);
  *problem = HaloProblemOf(call, tiling);
  const int columns = tiling.x_columns();
  problem->tap_bytes = tiling.reach / 2 * tiling.pixel_bytes();
  problem->x_bytes = columns * tiling.pixel_bytes();
  problem->dy_bytes = tiling.strip * tiling.pixel_bytes();
  const HaloRounds rounds = HaloRounds::Of(g, call.type, call.plan);
  problem->whole_tiles = static_cast<int>(rounds.whole);
  problem->stages =
      tiling.stages(rounds.whole > 0 ? HaloRounds::kStoredBytes : 0);
  const HaloHelpers helpers = HaloHelpers::Of(g, call.type, call.plan);
  problem->own_steps = static_cast<int>(helpers.own_steps);
  problem->helpers = static_cast<int>(helpers.count);
  if (Is3d(g)) {
    const int64_t x_slice = g.H * g.W * g.C, dy_slice = g.P * g.Q * g.K;
    return EncodeStrided(&problem->x, call.type, call.lhs,
                         {g.C, g.D, g.W, g.H, g.N},
                         {x_slice, g.C, g.W * g.C, g.D * x_slice},
                         {64, tiling.images, columns, 1, 1}) &&
           EncodeStrided(&problem->dy, call.type, call.rhs,
                         {g.K, g.O, g.Q, g.P, g.N},
                         {dy_slice, g.K, g.Q * g.K, g.O * dy_slice},
                         {64, tiling.images, tiling.strip, 1, 1});
  }
  return EncodeStrided(&problem->x, call.type, call.lhs, {g.C, g.N, g.W, g.H},
                       {g.H * g.W * g.C, g.C, g.W * g.C},
                       {64, tiling.images, columns, 1}) &&
         EncodeStrided(&problem->dy, call.type, call.rhs, {g.K, g.N, g.Q, g.P},
                       {g.P * g.Q * g.K, g.K, g.Q * g.K},
                       {64, tiling.images, tiling.strip, 1});
}

static_assert(HaloRounds::kStoredBytes == 3 * kRowsBytes);
constexpr int kHaloShared = HaloTiling::kSharedBytes + 1024;

// Of problems whose tiles have helpers, those and the tiles' own blocks.
template <typename Config>
cudaError_t LaunchWithHelpers(const HaloProblem& problem, Stage stage,
                              cudaStream_t stream) {
  const auto helpers = &WgradHaloKernel<Config, HaloRole::kHelpers>;
  const auto owners = &WgradHaloKernel<Config, HaloRole::kOwners>;
  cudaError_t error = RaiseSharedMemory(helpers, kHaloShared);
  if (error == cudaSuccess) error = RaiseSharedMemory(owners, kHaloShared);
  if (error != cudaSuccess || stage == Stage::kPrepare) return error;
  error = LaunchKernel(
      helpers,
      {problem.helpers, Config::kThreads, Start::kInOrder, kHaloShared}, stream,
      problem);
  return error != cudaSuccess ? error
                              : LaunchKernel(owners,
                                             {problem.tiles, Config::kThreads,
                                              Start::kEarly, kHaloShared},
                                             stream, problem);
}

// Each block does whole tiles, after what they leave over.
template <typename Config>
cudaError_t LaunchRounds(const ConvCall& call, const HaloProblem& problem,
                         Stage stage, cudaStream_t stream) {
  const auto kernel = &WgradHaloKernel<Config, HaloRole::kWhole>;
  const HaloRounds rounds = HaloRounds::Of(call.g, call.type, call.plan);
  cudaError_t error = RaiseSharedMemory(kernel, kHaloShared);
  if (error == cudaSuccess && rounds.left > 0) {
    error = WgradLeft(call, rounds, stage, stream);
  }
  if (error != cudaSuccess || stage == Stage::kPrepare) return error;
  const Start start = rounds.left > 0 ? Start::kEarly : Start::kInOrder;
  return LaunchKernel(kernel,
                      {problem.blocks, Config::kThreads, start, kHaloShared},
                      stream, problem);
}

template <typename T, int kMultiplications, int kWidth, bool k3d>
cudaError_t RunHalo(const ConvCall& call, Stage stage, cudaStream_t stream) {
  using Config = HaloConfig<T, kMultiplications, kWidth, k3d>;
  HaloProblem problem{};
  if (!MakeHaloProblem(call, &problem)) return cudaErrorInvalidValue;
  if constexpr (kWidth == kOneGroup) {
    if (problem.helpers > 0) {
      return LaunchWithHelpers<Config>(problem, stage, stream);
    }
  }
  if constexpr (kWidth == kOneGroup && !k3d) {
    if (problem.whole_tiles > 0) {
      return LaunchRounds<Config>(call, problem, stage, stream);
    }
  }
  return LaunchWgrad<Config>(&WgradHaloKernel<Config, HaloRole::kShares>,
                             Config::kThreads, kHaloShared, problem, stage,
                             stream);
}

template <typename T, int kWidth, bool k3d = false>
cudaError_t RunHalo(const ConvCall& call, Stage stage, cudaStream_t stream) {
  return HaloTiling(call.g, call.type).multiplications() == 7
             ? RunHalo<T, 7, kWidth, k3d>(call, stage, stream)
             : RunHalo<T, 8, kWidth, k3d>(call, stage, stream);
}

// Of several groups.
template <typename T, int kWidth>
cudaError_t RunGroups(const ConvCall& call, Stage stage, cudaStream_t stream) {
  const int m = call.plan.tile_m, n = call.plan.tile_n;
  if (m == kHaloM && n == kHaloN)
    return RunHalo<T, kWidth>(call, stage, stream);
  WgradProblem problem{};
  if (!MakeWgradProblem(call, &problem)) return cudaErrorInvalidValue;
  auto launch = [&](auto config) {
    using Config = decltype(config);
    return LaunchWgrad<Config>(&WgradKernel<Config>, Config::kThreads,
                               Config::kSharedBytes, problem, stage, stream);
  };
  constexpr bool kNo = false;  // transposed; in pairs
  if (m == 64 && n == 64)
    return launch(WgradConfig<T, 64, 64, 5, kNo, 1, kNo, kWidth>());
  if (m == 128 && n == 64)
    return launch(WgradConfig<T, 128, 64, 8, kNo, 2, kNo, kWidth>());
  if (m == 192 && n == 64)
    return launch(WgradConfig<T, 192, 64, 6, kNo, 3, kNo, kWidth>());
  if (m == 384 && n == 64)
    return launch(WgradConfig<T, 384, 64, 4, kNo, 3, kNo, kWidth>());
  if constexpr (kWidth == kBoxGroups) {
    if (m == 128 && n == 128)
      return launch(WgradConfig<T, 128, 128, 7, kNo, 2, kNo, kWidth>());
  }
  return cudaErrorInvalidValue;
}

template <typename T>
cudaError_t Run(const ConvCall& call, Stage stage, cudaStream_t stream) {
  if (call.g.groups > 1) {
    switch (IsFew16Bit(call.g, call.type) ? kFewWidth : GroupWidth(call.g)) {
      case 16:
        return RunGroups<T, 16>(call, stage, stream);
      case 32:
        return RunGroups<T, 32>(call, stage, stream);
      case kBoxGroups:
        return RunGroups<T, kBoxGroups>(call, stage, stream);
      default:
        return RunGroups<T, kAnyGroups>(call, stage, stream);
    }
  }
  const bool halo = call.plan.tile_m == kHaloM && call.plan.tile_n == kHaloN;
  if (!halo) return RunTiles<T>(call, stage, stream);
  return Is3d(call.g) ? RunHalo<T, kOneGroup, true>(call, stage, stream)
                      : RunHalo<T, kOneGroup>(call, stage, stream);
}

}  // namespace

cudaError_t Wgrad(const ConvCall& call, Stage stage, cudaStream_t stream) {
  if (IsShort(call.g, call.type, call.plan)) {
    return WgradShort(call, stage, stream);
  }
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
