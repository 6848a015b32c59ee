// SPDX-License-Identifier: Apache-2.0
// Launches of patch_dgrad.cuh.
#include <algorithm>

#include "cuda/sm90/arch/launch.cuh"
#include "cuda/sm90/kernels/patches/patch_dgrad.cuh"
#include "cuda/sm90/kernels/patches/patch_plan.h"
#include "cuda/sm90/problem/tensor_map.h"

namespace jax_convbatch::hopper {
namespace {

template <typename Config>
cudaError_t Launch(const ConvCall& call, PatchProblem problem, Stage stage,
                   cudaStream_t stream) {
  const ConvGeometry& g = call.g;
  const int64_t patches = g.N * g.P * g.Q;
  if (!EncodeTiled(&problem.dy, call.type, call.lhs, {g.K, patches},
                   {64, kPatchM}) ||
      !EncodeTiled(&problem.w, call.type, call.rhs, {g.K, g.R * g.S * g.C},
                   {64, Config::kColumns})) {
    return cudaErrorInvalidValue;
  }
  const int64_t m_tiles = (patches + kPatchM - 1) / kPatchM;
  problem.tiles = static_cast<int>(m_tiles * problem.groups);
  const auto kernel = &PatchDgradKernel<Config>;
  constexpr int kBytes = sizeof(PatchShared<Config>);
  const cudaError_t raised = RaiseSharedMemory(kernel, kBytes);
  if (raised != cudaSuccess || stage == Stage::kPrepare) return raised;
  kernel<<<std::min(problem.tiles, call.plan.blocks * Config::kBlocks),
           kThreads, kBytes, stream>>>(problem);
  return cudaGetLastError();
}

template <typename T>
cudaError_t Run(const ConvCall& call, Stage stage, cudaStream_t stream) {
  const ConvGeometry& g = call.g;
  PatchProblem problem{};
  problem.dx = call.result;
  problem.run = static_cast<int>(g.S * g.C);
  problem.rows = static_cast<int>(g.R);
  problem.together = std::min(call.plan.tile_n / problem.run, problem.rows);
  problem.steps = static_cast<int>((g.K + 63) / 64);
  problem.groups = (problem.rows + problem.together - 1) / problem.together;
  problem.patches = static_cast<int>(g.N * g.P * g.Q);
  problem.across = FastDivmod<uint32_t>(g.Q);
  const bool resident = problem.groups == 1 && problem.steps <= kMaxPatchSteps;
  switch (call.plan.tile_n) {
    case 64:
      return resident ? Launch<PatchConfig<T, 64, true>>(call, problem, stage,
                                                         stream)
                      : Launch<PatchConfig<T, 64, false>>(call, problem, stage,
                                                          stream);
    case 192:
      return Launch<PatchConfig<T, 192, false>>(call, problem, stage, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t PatchDgrad(const ConvCall& call, Stage stage, cudaStream_t stream) {
  return call.type == Type::kBf16 ? Run<__nv_bfloat16>(call, stage, stream)
                                  : Run<__half>(call, stage, stream);
}

}  // namespace jax_convbatch::hopper
