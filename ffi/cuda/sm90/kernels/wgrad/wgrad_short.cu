// SPDX-License-Identifier: Apache-2.0
#include "cuda/common/most_shared.h"
#include "cuda/sm90/arch/launch.cuh"
#include "cuda/sm90/epilogue/multiply_then_add.cuh"
#include "cuda/sm90/kernels/wgrad/wgrad_launch.cuh"
#include "cuda/sm90/kernels/wgrad/wgrad_short.h"
#include "cuda/sm90/kernels/wgrad/wgrad_short_kernel.cuh"
#include "cuda/sm90/kernels/wgrad/wgrad_short_launch.h"

namespace jax_convbatch::hopper {
namespace {

// What a launch may have without asking.
constexpr int kPortableCluster = 8;

// In a grid whose dimensions say which share of which tile a block has.
template <typename Problem>
cudaError_t LaunchGrid(void (*kernel)(Problem), const Problem& problem,
                       int threads, int shared_bytes, cudaStream_t stream) {
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(problem.cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(problem.splits, problem.minor_tiles,
                        problem.tiles / problem.minor_tiles);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = problem.cluster > 1;
  return cudaLaunchKernelEx(&config, kernel, problem);
}

// The last channels' tiles, see MakeLeftProblem.
template <typename T>
cudaError_t LaunchLeft(const ConvCall& call, const HaloRounds& rounds,
                       Stage stage, cudaStream_t stream) {
  using Config = WgradShortConfig<T, 64, 64>;
  const auto kernel = &WgradShortKernel<Config>;
  const cudaError_t error = RaiseSharedMemory(kernel, kMostShared);
  if (error != cudaSuccess || stage == Stage::kPrepare) return error;
  WgradShortProblem problem{};
  if (!MakeLeftProblem(call, rounds, &problem)) return cudaErrorInvalidValue;
  return LaunchGrid(kernel, problem, Config::kThreads,
                    Config::kTile.shared_bytes(problem.cluster), stream);
}

template <typename Config>
cudaError_t Launch(const ConvCall& call, Stage stage, cudaStream_t stream) {
  const auto kernel = &WgradShortKernel<Config>;
  const int cluster = call.plan.cluster;
  cudaError_t error = RaiseSharedMemory(kernel, kMostShared);
  if (error != cudaSuccess) return error;
  if (cluster > kPortableCluster) {
    error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    if (error != cudaSuccess) return error;
  }
  typename Config::Problem problem{};
  bool encoded;
  if constexpr (Config::kTapRow) {
    const WgradShortTiling tiling(call.g, Config::kM, Config::kN);
    encoded = MakeRowProblem(call, tiling, &problem);
  } else {
    encoded = MakeShortProblem(call, &problem);
  }
  if (!encoded) return cudaErrorInvalidValue;
  auto multiply = [&] {
    return LaunchGrid(kernel, problem, Config::kThreads,
                      Config::kTile.shared_bytes(cluster), stream);
  };
  if constexpr (!Config::kTapRow) {
    const auto adds = &AddWgradPartials<typename Config::Layout, 1>;
    return MultiplyThenAdd(
        stage, problem.splits == cluster, adds, multiply, [&] {
          return LaunchAddWgradPartials(
              adds, 1, Config::kQuads * Config::kConsumed, problem, stream);
        });
  } else {
    if (problem.splits != cluster) return cudaErrorInvalidValue;
    return stage == Stage::kPrepare ? cudaSuccess : multiply();
  }
}

template <typename T>
cudaError_t Run(const ConvCall& call, Stage stage, cudaStream_t stream) {
  const int m = call.plan.tile_m, n = call.plan.tile_n;
  auto launch = [&](auto config) {
    return Launch<decltype(config)>(call, stage, stream);
  };
  constexpr int kTwo = 2;  // warpgroups of the same output channels
  if (m == 64 && n == 64) return launch(WgradShortConfig<T, 64, 64>());
  if (m == 128 && n == 64) return launch(WgradShortConfig<T, 128, 64, kTwo>());
  if (m == 128 && n == 128) return launch(WgradShortConfig<T, 128, 128>());
  if (m == 192 && n == 128) return launch(WgradShortConfig<T, 192, 128>());
  if (m == kTapRowM && n == 64) {
    return launch(WgradShortConfig<T, kTapRowM, 64>());
  }
  return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t WgradShort(const ConvCall& call, Stage stage, cudaStream_t stream) {
  switch (call.type) {
    case Type::kBf16:
      return Run<__nv_bfloat16>(call, stage, stream);
    case Type::kF16:
      return Run<__half>(call, stage, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t WgradLeft(const ConvCall& call, const HaloRounds& rounds,
                      Stage stage, cudaStream_t stream) {
  return call.type == Type::kBf16
             ? LaunchLeft<__nv_bfloat16>(call, rounds, stage, stream)
             : LaunchLeft<__half>(call, rounds, stage, stream);
}

}  // namespace jax_convbatch::hopper
