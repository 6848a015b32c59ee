// SPDX-License-Identifier: Apache-2.0
// Launches of deform_kernel.cuh.
#include <algorithm>

#include "cuda/sm90/arch/launch.cuh"
#include "cuda/sm90/kernels/deform/deform.h"
#include "cuda/sm90/kernels/deform/deform_kernel.cuh"
#include "cuda/sm90/problem/tensor_map.h"

namespace jax_convbatch::hopper {
namespace {

template <typename Config, int kSplit>
cudaError_t Launch(const DeformProblem& problem, int blocks, Stage stage,
                   cudaStream_t stream) {
  const auto kernel = &DeformFpropKernel<Config, kSplit>;
  constexpr int kBytes = Config::kRingBytes + 1024;
  if (stage == Stage::kPrepare) {
    const cudaError_t raised = RaiseSharedMemory(kernel, kBytes);
    if (raised != cudaSuccess) return raised;
    // No more shared memory than that: the L1 serves the pixels.
    constexpr int kPercent =
        (kBytes + int(sizeof(DeformShared<Config>)) + 1024) * 100 /
            (228 * 1024) +
        1;
    return cudaFuncSetAttribute(
        kernel, cudaFuncAttributePreferredSharedMemoryCarveout, kPercent);
  }
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kSplit, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(kDeformThreads);
  config.dynamicSmemBytes = kBytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  if (kSplit > 1) {
    // A cluster that waits for another to end would double the time: fewer may
    // fit than SMs suggest.
    int clusters;
    const cudaError_t asked =
        cudaOccupancyMaxActiveClusters(&clusters, kernel, &config);
    if (asked != cudaSuccess) return asked;
    config.gridDim = dim3(std::min(blocks, std::max(clusters, 1) * kSplit));
  }
  return cudaLaunchKernelEx(&config, kernel, problem);
}

template <typename T, int kN, int kStages>
cudaError_t Run(const DeformCall& call, const DeformProblem& problem,
                Stage stage, cudaStream_t stream) {
  using Config = DeformConfig<T, kN, kStages>;
  const int blocks = call.plan.blocks;
  return call.plan.split == 1
             ? Launch<Config, 1>(problem, blocks, stage, stream)
             : Launch<Config, 2>(problem, blocks, stage, stream);
}

template <typename T>
cudaError_t RunType(const DeformCall& call, const DeformProblem& problem,
                    Stage stage, cudaStream_t stream) {
  switch (call.plan.tile_n) {
    case 64:
      return Run<T, 64, 5>(call, problem, stage, stream);
    case 128:
      return Run<T, 128, 4>(call, problem, stage, stream);
    default:
      return Run<T, 256, 3>(call, problem, stage, stream);
  }
}

}  // namespace

cudaError_t DeformFprop(const DeformCall& call, Stage stage,
                        cudaStream_t stream) {
  const ConvGeometry& g = call.g;
  const int chunk = 128 / ElementBytes(call.type);
  const int64_t group_C = g.group_C(), group_K = g.K / g.groups;
  const int64_t group_n_tiles =
      (group_K + call.plan.tile_n - 1) / call.plan.tile_n;
  DeformProblem problem{};
  problem.whole_boxes = group_K % chunk == 0;
  if (stage == Stage::kLaunch) {
    const bool encoded =
        problem.whole_boxes
            ? EncodeStrided(&problem.weights, call.type, call.w,
                            {chunk, group_C, g.K / chunk, g.taps()},
                            {g.K, chunk, group_C * g.K},
                            {chunk, chunk, call.plan.tile_n / chunk, 1})
            : EncodeTiled(&problem.weights, call.type, call.w,
                          {g.K, group_C, g.taps()}, {chunk, chunk, 1});
    if (!encoded) return cudaErrorInvalidValue;
  }
  problem.x = call.x;
  problem.positions = call.positions;
  problem.grid = PositionGrid(g);
  problem.bias = call.bias;
  problem.y = call.y;
  problem.channels = static_cast<int>(g.C);
  problem.group_channels = static_cast<int>(group_C);
  problem.group_outputs = static_cast<int>(group_K);
  problem.K = static_cast<int>(g.K);
  problem.pixels = static_cast<int>(g.N * g.output_pixels());
  problem.offset_groups = static_cast<int>(call.offset_groups);
  problem.image_pixels = FastDivmod<uint32_t>(g.output_pixels());
  problem.image_row = FastDivmod<uint32_t>(g.Q);
  problem.taps = static_cast<int>(g.taps());
  problem.offset_channels = FastDivmod<uint32_t>(g.C / call.offset_groups);
  problem.n_tiles = FastDivmod<uint32_t>(g.groups * group_n_tiles);
  problem.group_n_tiles = FastDivmod<uint32_t>(group_n_tiles);
  problem.tiles = static_cast<int>((problem.pixels + kDeformPixels - 1) /
                                   kDeformPixels * g.groups * group_n_tiles);
  problem.stages = static_cast<int>(g.taps() * ((group_C + chunk - 1) / chunk));
  switch (call.type) {
    case Type::kBf16:
      return RunType<__nv_bfloat16>(call, problem, stage, stream);
    case Type::kF16:
      return RunType<__half>(call, problem, stage, stream);
    default:
      return RunType<float>(call, problem, stage, stream);
  }
}

}  // namespace jax_convbatch::hopper
