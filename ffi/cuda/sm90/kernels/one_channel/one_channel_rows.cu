// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cuda/common/left_out.h"
#include "cuda/sm90/arch/launch.cuh"
#include "cuda/sm90/kernels/one_channel/one_channel_rows.cuh"
#include "cuda/sm90/kernels/one_channel/one_channel_rows.h"
#include "cuda/sm90/problem/given_epilogue.h"
#include "cuda/sm90/problem/subproblems.h"

namespace jax_convbatch::hopper {
namespace {

constexpr int kQuads = 4;  // of output channels

// `warps` there are for the tiles: images, or as few of their rows, but no less
// than `least`, as give all of them one.
OneRowsProblem MakeProblem(const ConvGeometry& g, int64_t warps,
                           int64_t least) {
  const int64_t chunks =
      std::max<int64_t>(1, std::min(warps / g.N, g.H / least));
  OneRowsProblem p{};
  p.H = static_cast<int>(g.H);
  p.W = static_cast<int>(g.W);
  p.rows = static_cast<int>((g.H + chunks - 1) / chunks);
  p.chunks = (p.H + p.rows - 1) / p.rows;
  p.tiles = static_cast<int>(g.N) * p.chunks;
  return p;
}

OneRowsProblem MakeBackward(const ConvGeometry& g, int multiprocessors) {
  // A tile reads the rows of dy next to it, too.
  return MakeProblem(g, int64_t{multiprocessors} * kRowWarps, 4);
}

int BackwardBlocks(const OneRowsProblem& p, int multiprocessors) {
  return std::min(p.tiles, multiprocessors);
}

}  // namespace

bool HasOneRows(const ConvGeometry& g, Type type) {
  ConvGeometry four = g;
  four.C = 4;
  return !IsLeftOut(Family::kOneChannelRows) && type == Type::kTf32 &&
         g.C == 1 && g.K == 4 * kQuads && g.R == 3 && g.S == 3 &&
         g.pad.h == 1 && g.pad.w == 1 && g.stride.all(1) &&
         g.filter_dilation.all(1) && g.P == g.H && g.Q == g.W && g.W % 4 == 0 &&
         g.W <= 128 / kQuads && g.H <= 1 << 16 && g.N >= 1 && g.H >= 1 &&
         g.W >= 1 && g.N * g.H * g.W <= int64_t{1} << 30 &&
         IsPlain2d(four, type);
}

cudaError_t RunOneRowsFprop(const ConvCall& call, Stage stage,
                            cudaStream_t stream) {
  const auto kernel = &OneRowsFprop<kQuads>;
  if (stage == Stage::kPrepare) {
    cudaFuncAttributes loads;
    return cudaFuncGetAttributes(&loads, kernel);
  }
  const int blocks = call.plan.blocks;
  OneRowsProblem p = MakeProblem(call.g, int64_t{blocks} * kRowWarps, 2);
  p.x = static_cast<const float*>(call.lhs);
  p.w = static_cast<const float*>(call.rhs);
  p.y = static_cast<float*>(call.result);
  const Epilogue e = EpilogueOf(call);
  kernel<<<std::min(p.tiles, blocks), kRowThreads, 0, stream>>>(p, e);
  return cudaGetLastError();
}

int64_t OneRowsWorkspace(const ConvGeometry& g, int multiprocessors) {
  const OneRowsProblem p = MakeBackward(g, multiprocessors);
  const int64_t bytes = BackwardBlocks(p, multiprocessors) * 10 * g.K * 4;
  return (bytes + 255) / 256 * 256;
}

cudaError_t RunOneRowsBackward(const FusedBackwardCall& call,
                               int multiprocessors, Stage stage,
                               cudaStream_t stream) {
  const auto kernel = &OneRowsBackward<kQuads>;
  constexpr int kBytes = kRowWarps * kRowStages * sizeof(RowStage<kQuads>);
  const cudaError_t raised = RaiseSharedMemory(kernel, kBytes);
  if (raised != cudaSuccess) return raised;
  if (stage == Stage::kPrepare) {
    cudaFuncAttributes loads;
    return cudaFuncGetAttributes(&loads, &AddRowPartials);
  }
  OneRowsProblem p = MakeBackward(call.g, multiprocessors);
  p.x = static_cast<const float*>(call.x);
  p.w = static_cast<const float*>(call.w);
  p.dy = static_cast<const float*>(call.dy);
  p.bitmask = static_cast<const uint8_t*>(call.bitmask);
  p.dx = static_cast<float*>(call.dx);
  p.dz = static_cast<float*>(call.dz);
  p.partials = static_cast<float*>(call.workspace);
  const int blocks = BackwardBlocks(p, multiprocessors);
  kernel<<<blocks, kRowThreads, kBytes, stream>>>(p);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  constexpr int kSums = 10 * 4 * kQuads;
  return LaunchKernel(AddRowPartials,
                      {(kSums + kRowColumns - 1) / kRowColumns,
                       kRowColumns * kRowTeams, Start::kEarly},
                      stream, p.partials, blocks, 4 * kQuads,
                      static_cast<float*>(call.dw),
                      static_cast<float*>(call.db));
}

}  // namespace jax_convbatch::hopper
