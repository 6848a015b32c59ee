// SPDX-License-Identifier: Apache-2.0
// Launches wgrad_kernel.cuh, and what adds its partials.
#pragma once

#include <type_traits>

#include "cuda/sm90/arch/launch.cuh"
#include "cuda/sm90/epilogue/multiply_then_add.cuh"
#include "cuda/sm90/kernels/wgrad/wgrad_kernel.cuh"
#include "cuda/sm90/kernels/wgrad/wgrad_launch.cuh"
#include "cuda/sm90/kernels/wgrad/wgrad_launch.h"

namespace jax_convbatch::hopper {

// The quads that a thread of AddWgradPartials has where there are so many
// threads that instructions count.
inline constexpr int kAddEach = 2;
inline constexpr int64_t kManyThreads = 1 << 17;

// The kernel, then the sums of its partials.
template <typename Config, typename Problem>
cudaError_t LaunchWgrad(void (*kernel)(Problem), int threads, int shared_bytes,
                        const Problem& problem, Stage stage,
                        cudaStream_t stream) {
  const bool whole =
      problem.tiles % problem.blocks == 0 || problem.cluster == problem.splits;
  if (problem.cluster > Config::kMaxCluster) return cudaErrorInvalidValue;
  const cudaError_t error = RaiseSharedMemory(kernel, shared_bytes);
  if (error != cudaSuccess) return error;
  const int64_t quads = int64_t{Config::kQuads} * Config::kConsumed;
  const int64_t sums = (problem.tiles - problem.first_shared) * quads;
  const bool many = sums * TeamsOf(problem, quads).groups() >= kManyThreads;
  const auto adds = many ? &AddWgradPartials<typename Config::Layout, kAddEach>
                         : &AddWgradPartials<typename Config::Layout, 1>;
  return MultiplyThenAdd(
      stage, whole, adds,
      [&] {
        return LaunchKernel(
            kernel,
            {problem.blocks, threads, Start::kInOrder, shared_bytes,
             problem.cluster * (problem.paired ? 2 : 1)},
            stream, problem);
      },
      [&] {
        return LaunchAddWgradPartials(adds, many ? kAddEach : 1, quads, problem,
                                      stream);
      });
}

// Tiles of one group.
template <typename T>
cudaError_t RunTiles(const ConvCall& call, Stage stage, cudaStream_t stream) {
  const int m = call.plan.tile_m, n = call.plan.tile_n;
  WgradProblem problem{};
  if (!MakeWgradProblem(call, &problem)) return cudaErrorInvalidValue;
  auto launch = [&](auto config) {
    using Config = decltype(config);
    return LaunchWgrad<Config>(&WgradKernel<Config>, Config::kThreads,
                               Config::kSharedBytes, problem, stage, stream);
  };
  constexpr bool kNo = false, kYes = true;  // transposed; in pairs
  if (call.plan.pair != Pair::kNone) {
    if (m == 64 && n == 128)
      return launch(WgradConfig<T, 64, 128, 8, kNo, 2, kYes>());
    if (m == 128 && n == 128)
      return launch(WgradConfig<T, 128, 128, 7, kNo, 2, kYes>());
    if (m == 192 && n == 128)
      return launch(WgradConfig<T, 192, 128, 5, kNo, 3, kYes>());
    if (m == 256 && n == 128)
      return launch(WgradConfig<T, 256, 128, 4, kYes, 2, kYes>());
    return cudaErrorInvalidValue;
  }
  if (m == 64 && n == 64) return launch(WgradConfig<T, 64, 64, 5, kNo, 1>());
  if (m == 64 && n == 128) return launch(WgradConfig<T, 64, 128, 8, kNo, 2>());
  if (m == 128 && n == 64) return launch(WgradConfig<T, 128, 64, 8, kNo>());
  if (m == 128 && n == 128) return launch(WgradConfig<T, 128, 128, 7, kNo>());
  if (m == 128 && n == 256) return launch(WgradConfig<T, 128, 256, 4, kNo>());
  if (m == 192 && n == 128)
    return launch(WgradConfig<T, 192, 128, 5, kNo, 3>());
  if (m == 256 && n == 128) return launch(WgradConfig<T, 256, 128, 4, kYes>());
  return cudaErrorInvalidValue;
}

}  // namespace jax_convbatch::hopper
