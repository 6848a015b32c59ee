// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cuda/common/most_shared.h"
#include "cuda/sm90/arch/launch.cuh"
#include "cuda/sm90/kernels/small/small_backward.cuh"
#include "cuda/sm90/kernels/small/small_backward_plan.h"

namespace jax_convbatch::hopper {
namespace {

template <typename Config>
cudaError_t Launch(const FusedBackwardCall& call, int multiprocessors,
                   Stage stage, cudaStream_t stream) {
  const ConvGeometry& g = call.g;
  const auto kernel = &SmallBackwardKernel<Config>;
  SmallBackwardProblem p{};
  p.grid = SmallGridOf(g, multiprocessors);
  const int bytes = static_cast<int>(SmallBackwardBytes(g, p.grid));
  // To one limit: threads may launch the kernel for several geometries at once.
  const cudaError_t raised = RaiseSharedMemory(kernel, kMostShared);
  if (raised != cudaSuccess) return raised;
  if (stage == Stage::kPrepare) {
    cudaFuncAttributes loads;
    return cudaFuncGetAttributes(&loads, &AddSmallPartials<Config>);
  }
  if (!EncodeGrid(&p.dy, g, p.grid, g.K, call.dy, /*rounded=*/false) ||
      !EncodeGrid(&p.x, g, p.grid, g.C, call.x, /*rounded=*/true)) {
    return cudaErrorInvalidValue;
  }
  p.w = static_cast<const float*>(call.w);
  p.bitmask = static_cast<const uint8_t*>(call.bitmask);
  p.dx = static_cast<float*>(call.dx);
  p.dz = static_cast<float*>(call.dz);
  p.partials = static_cast<float*>(call.workspace);
  p.N = static_cast<int>(g.N);
  p.H = static_cast<int>(g.H);
  p.W = static_cast<int>(g.W);
  p.tiles = static_cast<int>((g.N + p.grid.images - 1) / p.grid.images);
  const int blocks = SmallBackwardBlocks(g, p.grid, multiprocessors);
  kernel<<<blocks, Config::kThreads, bytes, stream>>>(p);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  constexpr int kQuads = Config::kPartial / 4;
  return LaunchKernel(AddSmallPartials<Config>,
                      {(kQuads + kAddColumns - 1) / kAddColumns,
                       kAddColumns * kAddTeams, Start::kEarly},
                      stream, p.partials, blocks, static_cast<float*>(call.dw),
                      static_cast<float*>(call.db));
}

}  // namespace

cudaError_t SmallBackward(const FusedBackwardCall& call, int multiprocessors,
                          Stage stage, cudaStream_t stream) {
  auto launch = [&](auto config) {
    return Launch<decltype(config)>(call, multiprocessors, stage, stream);
  };
  switch (call.g.C * 100 + call.g.K) {
    case 1632:
      return launch(SmallBackwardConfig<16, 32>());
    case 3216:
      return launch(SmallBackwardConfig<32, 16>());
    case 3232:
      return launch(SmallBackwardConfig<32, 32>());
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace jax_convbatch::hopper
