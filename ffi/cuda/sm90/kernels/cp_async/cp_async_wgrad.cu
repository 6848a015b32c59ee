// SPDX-License-Identifier: Apache-2.0
// Launches of cp_async_wgrad.cuh.
#include "cuda/sm90/epilogue/multiply_then_add.cuh"
#include "cuda/sm90/kernels/cp_async/cp_async_launch.cuh"
#include "cuda/sm90/kernels/cp_async/cp_async_wgrad.cuh"

namespace jax_convbatch::hopper {
namespace {

template <typename Config>
cudaError_t Launch(const CpAsyncWgradProblem& problem, Stage stage,
                   cudaStream_t stream) {
  const auto kernel = &CpAsyncWgradKernel<Config>;
  const cudaError_t error = RaiseSharedMemory(kernel, Config::kSharedBytes);
  if (error != cudaSuccess) return error;
  const auto adds = &AddCpAsyncPartials<Config>;
  return MultiplyThenAdd(
      stage, problem.splits == 1, adds,
      [&] {
        return LaunchOne(kernel, problem.tiles * problem.splits,
                         kCpAsyncThreads, Config::kSharedBytes, stream,
                         problem);
      },
      [&] {
        return LaunchOne(adds, problem.tiles * Config::kQuads,
                         kConsumers * kWarpgroup, 0, stream, problem);
      });
}

}  // namespace

cudaError_t CpAsyncWgrad(const ConvCall& call, Stage stage,
                         cudaStream_t stream) {
  const ConvGeometry& g = call.g;
  const int n = call.plan.tile_n;
  const CpAsyncTiling tiling(g, call.plan.tile_m, n);
  const int64_t splits = call.plan.blocks / tiling.tiles();
  CpAsyncWgradProblem problem{};
  problem.x = SourceOfX(g, call.lhs);
  problem.dy = MatrixSource(call.rhs, g.K);
  problem.channels = static_cast<int>(g.C);
  problem.grid = MakeGrid(FpropSubproblem(g), g.N);
  problem.runs = MakeRuns(RunsOfX(g));
  problem.dw = call.result;
  problem.partials = static_cast<float*>(call.workspace);
  problem.K = static_cast<int>(g.K);
  problem.n_tiles = static_cast<int>(tiling.n_tiles);
  problem.tiles = static_cast<int>(tiling.tiles());
  problem.steps = static_cast<int>(tiling.steps);
  problem.splits = static_cast<int>(splits);
  problem.steps_each = static_cast<int>((tiling.steps + splits - 1) / splits);
  auto launch = [&](auto tag) {
    using T = typename decltype(tag)::type;
    return n == 64
               ? Launch<CpAsyncWgradConfig<T, 64, 8>>(problem, stage, stream)
               : Launch<CpAsyncWgradConfig<T, 128, 6>>(problem, stage, stream);
  };
  return call.type == Type::kBf16 ? launch(TypeTag<__nv_bfloat16>())
                                  : launch(TypeTag<__half>());
}

}  // namespace jax_convbatch::hopper
