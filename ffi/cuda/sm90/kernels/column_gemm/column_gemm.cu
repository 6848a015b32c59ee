// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cuda/sm90/arch/launch.cuh"
#include "cuda/sm90/kernels/column_gemm/column_gemm.h"
#include "cuda/sm90/kernels/column_gemm/column_gemm_kernel.cuh"
#include "cuda/sm90/problem/tensor_map.h"

namespace jax_convbatch::hopper {
namespace {

template <typename Config>
cudaError_t Launch(const ColumnGemmProblem& problem, int blocks, Stage stage,
                   cudaStream_t stream) {
  const auto kernel = &ColumnGemmKernel<Config>;
  const cudaError_t raised = RaiseSharedMemory(kernel, Config::kSharedBytes);
  if (raised != cudaSuccess || stage == Stage::kPrepare) return raised;
  blocks -= blocks % Config::kCluster;
  return LaunchKernel(kernel,
                      {std::min(problem.tiles, blocks), kThreads, Start::kEarly,
                       Config::kSharedBytes, Config::kCluster},
                      stream, problem);
}

template <int kM, int kN, int kStages, int kCluster>
cudaError_t Run(const ColumnGemmCall& call, Stage stage, cudaStream_t stream) {
  using Config = ColumnGemmConfig<kM, kN, kStages, kCluster>;
  const ConvGeometry& g = call.images;
  const int64_t rows = g.N * g.output_pixels();
  constexpr Type kType = Type::kTf32;
  ColumnGemmProblem problem{};
  const bool encoded =
      EncodeTiled(&problem.columns, kType, call.columns, {g.C, rows},
                  {kTf32Block, Config::kBoxRows}) &&
      EncodeTiled(&problem.filter, kType, call.filter, {g.C, g.K},
                  {kTf32Block, kN}) &&
      EncodeTiled(&problem.sub.output, kType, call.y, {g.K, rows},
                  {kTf32Block, Config::kStorePixels}, Copy::kStore);
  if (!encoded) return cudaErrorInvalidValue;
  problem.sub.pixels = static_cast<int>(rows);
  problem.sub.rows = problem.sub.cols = 1;
  problem.epilogue.bias = call.bias;
  problem.channels = static_cast<int>(g.K);
  const int n_tiles = static_cast<int>((g.K + kN - 1) / kN);
  problem.n_tiles = n_tiles;
  problem.tiles = static_cast<int>((rows + kM - 1) / kM) * n_tiles;
  problem.stages = static_cast<int>((g.C + kTf32Block - 1) / kTf32Block);
  return Launch<Config>(problem, call.plan.blocks, stage, stream);
}

template <int kM, int kN, int kStages>
cudaError_t RunTile(const ColumnGemmCall& call, Stage stage,
                    cudaStream_t stream) {
  const bool pairs = (call.images.K + kN - 1) / kN % 2 == 0;
  return pairs ? Run<kM, kN, kStages, 2>(call, stage, stream)
               : Run<kM, kN, kStages, 1>(call, stage, stream);
}

}  // namespace

cudaError_t RunColumnGemm(const ColumnGemmCall& call, Stage stage,
                          cudaStream_t stream) {
  if (call.plan.tile_n == 128) return RunTile<128, 128, 6>(call, stage, stream);
  return call.plan.tile_m == 128 ? RunTile<128, 64, 7>(call, stage, stream)
                                 : RunTile<64, 64, 8>(call, stage, stream);
}

}  // namespace jax_convbatch::hopper
