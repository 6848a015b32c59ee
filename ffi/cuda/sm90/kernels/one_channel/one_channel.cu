// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cuda/common/most_shared.h"
#include "cuda/sm80/direct/add_partials.cuh"
#include "cuda/sm90/arch/launch.cuh"
#include "cuda/sm90/kernels/one_channel/one_channel.cuh"
#include "cuda/sm90/kernels/one_channel/one_channel.h"
#include "cuda/sm90/problem/given_epilogue.h"
#include "cuda/sm90/problem/subproblems.h"

namespace jax_convbatch::hopper {
namespace {

int64_t PixelsOf(Op op, const ConvGeometry& g) {
  return op == Op::kDgrad ? g.N * g.H * g.W : g.N * g.P * g.Q;
}

// Pixels of a row that a thread takes at once.
int Cols(Op op, const ConvGeometry& g) {
  const bool neighbours = g.stride.w == 1 && g.filter_dilation.w == 1;
  return neighbours && (op == Op::kDgrad ? g.W : g.Q) % 4 == 0 ? 4 : 1;
}

// As many as there are pixels for: a function of geometry and device.
int64_t Blocks(Op op, const ConvGeometry& g, int multiprocessors) {
  const int64_t at_once = kOneThreads / (g.K / 4) * Cols(op, g);
  return std::clamp<int64_t>(
      PixelsOf(op, g) / at_once, 1,
      int64_t{multiprocessors} * OneChannelBlocks(static_cast<int>(g.R)));
}

OneChannelProblem MakeProblem(Op op, const ConvCall& call, int blocks) {
  const ConvGeometry& g = call.g;
  const int64_t at_once = kOneThreads / (g.K / 4);
  const int cols = Cols(op, g);
  const int64_t groups = PixelsOf(op, g) / cols;
  OneChannelProblem p{};
  p.H = static_cast<int>(g.H);
  p.W = static_cast<int>(g.W);
  p.P = static_cast<int>(g.P);
  p.Q = static_cast<int>(g.Q);
  p.stride_h = static_cast<int>(g.stride.h);
  p.stride_w = static_cast<int>(g.stride.w);
  p.pad_h = static_cast<int>(g.pad.h);
  p.pad_w = static_cast<int>(g.pad.w);
  p.dilation_h = static_cast<int>(g.filter_dilation.h);
  p.dilation_w = static_cast<int>(g.filter_dilation.w);
  p.quads = static_cast<int>(g.K / 4);
  p.groups = static_cast<int>(groups);
  const int64_t each = (groups + blocks - 1) / blocks;
  p.per_block = static_cast<int>((each + at_once - 1) / at_once * at_once);
  p.across = FastDivmod<uint32_t>((op == Op::kDgrad ? g.W : g.Q) / cols);
  p.down = FastDivmod<uint32_t>(op == Op::kDgrad ? g.H : g.P);
  return p;
}

template <int kTaps, int kCols>
cudaError_t Run(Op op, const ConvCall& call, Stage stage, cudaStream_t stream) {
  const int blocks = call.plan.blocks;
  OneChannelProblem p = MakeProblem(op, call, blocks);
  cudaFuncAttributes loads;
  const bool prepares = stage == Stage::kPrepare;
  switch (op) {
    case Op::kFprop: {
      const auto kernel = &OneChannelFprop<kTaps, kCols>;
      if (prepares) return cudaFuncGetAttributes(&loads, kernel);
      p.x = static_cast<const float*>(call.lhs);
      p.w = static_cast<const float*>(call.rhs);
      p.out = static_cast<float*>(call.result);
      const Epilogue e = EpilogueOf(call);
      kernel<<<blocks, kOneThreads, 0, stream>>>(p, e);
      return cudaGetLastError();
    }
    case Op::kDgrad: {
      const auto kernel = &OneChannelDgrad<kTaps, kCols>;
      if (prepares) return cudaFuncGetAttributes(&loads, kernel);
      p.y = static_cast<const float*>(call.lhs);
      p.w = static_cast<const float*>(call.rhs);
      p.out = static_cast<float*>(call.result);
      kernel<<<blocks, kOneThreads, 0, stream>>>(p);
      return cudaGetLastError();
    }
    default: {
      const auto kernel = &OneChannelWgrad<kTaps, kCols>;
      const int64_t size = call.g.w_size();
      const int bytes = static_cast<int>(kOneThreads / 32 * size * 4);
      const cudaError_t raised = RaiseSharedMemory(kernel, kMostShared);
      if (raised != cudaSuccess) return raised;
      p.x = static_cast<const float*>(call.lhs);
      p.y = static_cast<const float*>(call.rhs);
      p.out = static_cast<float*>(call.workspace);
      if (!prepares) {
        kernel<<<blocks, kOneThreads, bytes, stream>>>(p);
        const cudaError_t error = cudaGetLastError();
        if (error != cudaSuccess) return error;
      }
      return direct::AddPartialsOrPrepare<float>(
          blocks, size, call.workspace, call.result,
          prepares ? direct::Stage::kPrepare : direct::Stage::kLaunch, stream);
    }
  }
}

}  // namespace

std::optional<Plan> PlanOneChannel(Op op, const ConvGeometry& g,
                                   int multiprocessors) {
  ConvGeometry four = g;
  four.C = 4;
  const bool known = g.R == g.S && (g.R == 3 || g.R == 5) &&
                     (g.K & (g.K - 1)) == 0 && 4 <= g.K && g.K <= 128;
  const bool strided = g.stride.h != 1 || g.stride.w != 1;
  constexpr double kMost = int64_t{1} << 30;
  const double n = static_cast<double>(g.N);
  if (g.C != 1 || !known || (op == Op::kDgrad && strided) ||
      !IsPlain2d(four, Type::kTf32) || n * g.H * g.W > kMost ||
      n * g.P * g.Q > kMost) {
    return std::nullopt;
  }
  const int blocks = static_cast<int>(Blocks(op, g, multiprocessors));
  // As the handler carves it.
  const int64_t workspace =
      op == Op::kWgrad ? (blocks * g.w_size() * 4 + 255) / 256 * 256 : 0;
  return Plan{static_cast<int>(kOneThreads / (g.K / 4)), static_cast<int>(g.K),
              blocks, workspace, Path::kOneChannel};
}

cudaError_t RunOneChannel(Op op, const ConvCall& call, Stage stage,
                          cudaStream_t stream) {
  const bool four = Cols(op, call.g) == 4;
  if (call.g.R == 3) {
    return four ? Run<3, 4>(op, call, stage, stream)
                : Run<3, 1>(op, call, stage, stream);
  }
  return four ? Run<5, 4>(op, call, stage, stream)
              : Run<5, 1>(op, call, stage, stream);
}

}  // namespace jax_convbatch::hopper
