// SPDX-License-Identifier: Apache-2.0
// Launches wgrad_tf32_kernel.cuh, and what adds its partials.
#pragma once

#include <type_traits>

#include "cuda/sm90/arch/launch.cuh"
#include "cuda/sm90/epilogue/multiply_then_add.cuh"
#include "cuda/sm90/kernels/wgrad/wgrad_launch.cuh"
#include "cuda/sm90/kernels/wgrad/wgrad_launch.h"
#include "cuda/sm90/kernels/wgrad/wgrad_tf32_kernel.cuh"

namespace jax_convbatch::hopper {

// kWidth: see group_width.h.
template <int kWidth>
cudaError_t RunTf32Tiles(const ConvCall& call, Stage stage,
                         cudaStream_t stream) {
  WgradProblem problem{};
  if (!MakeWgradProblem(call, &problem)) return cudaErrorInvalidValue;
  auto launch = [&](auto config) {
    using Config = decltype(config);
    const bool whole = problem.tiles % problem.blocks == 0;
    const auto kernel = &WgradTf32Kernel<Config>;
    const cudaError_t error = RaiseSharedMemory(kernel, Config::kSharedBytes);
    if (error != cudaSuccess) return error;
    const auto adds = &AddWgradPartialsTf32<Config>;
    return MultiplyThenAdd(
        stage, whole, adds,
        [&] {
          return LaunchOne(kernel, problem.blocks, Config::kThreads,
                           Config::kSharedBytes, stream, problem);
        },
        [&] {
          return LaunchKernel(adds,
                              {int64_t{problem.tiles} * Config::kQuads,
                               Config::kMultiplierThreads, Start::kEarly},
                              stream, problem);
        });
  };
  const int m = call.plan.tile_m, n = call.plan.tile_n;
  if constexpr (!kIsNarrow<kWidth>) {
    if (m == 256 && n == 128)
      return launch(WgradTf32Config<256, 128, 4, 1, kWidth>());
    if (m == kTapRowTile && n == 128) {
      return launch(WgradTf32Config<kTapRowTile, 128, 8, 3, kWidth>());
    }
  }
  if (m == 256 && n == 64)
    return launch(WgradTf32Config<256, 64, 5, 1, kWidth>());
  if (m == kTapRowTile && n == 64) {
    return launch(WgradTf32Config<kTapRowTile, 64, 10, 3, kWidth>());
  }
  if (m == 128 && n == 64)
    return launch(WgradTf32Config<128, 64, 8, 1, kWidth>());
  if (m == 128 && n == 32)
    return launch(WgradTf32Config<128, 32, 8, 1, kWidth>());
  return cudaErrorInvalidValue;
}

}  // namespace jax_convbatch::hopper
