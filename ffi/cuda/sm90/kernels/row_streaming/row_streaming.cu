// SPDX-License-Identifier: Apache-2.0
// Launches of row_streaming.cuh.
#include <algorithm>

#include "cuda/common/most_shared.h"
#include "cuda/sm90/arch/launch.cuh"
#include "cuda/sm90/kernels/row_streaming/row_streaming.cuh"
#include "cuda/sm90/kernels/row_streaming/row_streaming_shape.h"
#include "cuda/sm90/problem/tensor_map.h"

namespace jax_convbatch::hopper {
namespace {

// Into how many strips of rows an image is cut: what takes the longest
// warpgroup the fewest rows.
int64_t RowStrips(const RowStreamingShape& shape, int64_t strips,
                  int64_t warpgroups) {
  constexpr int64_t kMost = 256;
  // What a strip costs besides its rows.
  constexpr int64_t kFixed = 2;
  int64_t best = 1, least = 0;
  for (int64_t n = 1; n <= std::min<int64_t>(shape.h.patches, kMost); ++n) {
    const int64_t rows = (shape.h.patches + n - 1) / n;
    const int64_t waves = (strips * n + warpgroups - 1) / warpgroups;
    const int64_t time = waves * (rows + shape.h.taps - 1 + kFixed);
    if (n == 1 || time < least) {
      least = time;
      best = (shape.h.patches + rows - 1) / rows;
    }
  }
  return best;
}

template <typename Config>
cudaError_t Launch(const RowStreamingProblem& problem, int bytes, int blocks,
                   Stage stage, cudaStream_t stream) {
  const auto kernel = &RowStreamingKernel<Config>;
  const cudaError_t raised = RaiseSharedMemory(kernel, kMostShared);
  if (raised != cudaSuccess || stage == Stage::kPrepare) return raised;
  kernel<<<std::min(problem.strips, blocks), kRowStreamingThreads, bytes,
           stream>>>(problem);
  return cudaGetLastError();
}

template <typename T, int kStages>
cudaError_t Dispatch(const RowStreamingProblem& problem,
                     const RowStreamingShape& shape, int blocks, Stage stage,
                     cudaStream_t stream) {
  const int bytes = static_cast<int>(shape.shared_bytes(kStages));
  auto launch = [&](auto config) {
    return Launch<decltype(config)>(problem, bytes, blocks, stage, stream);
  };
  switch (shape.rows()) {
    case 1:
      return launch(RowStreamingConfig<T, 1, kStages>());
    case 2:
      return launch(RowStreamingConfig<T, 2, kStages>());
    case 4:
      return launch(RowStreamingConfig<T, 4, kStages>());
    case 8:
      return launch(RowStreamingConfig<T, 8, kStages>());
    default:
      return cudaErrorInvalidValue;
  }
}

template <typename T>
cudaError_t Dispatch(const RowStreamingProblem& problem,
                     const RowStreamingShape& shape, int blocks, Stage stage,
                     cudaStream_t stream) {
  const auto dispatch = shape.stages() == kRowStreamingStages
                            ? &Dispatch<T, kRowStreamingStages>
                            : &Dispatch<T, kRowStreamingFewStages>;
  return dispatch(problem, shape, blocks, stage, stream);
}

// `problem` has the filter's distances already.
cudaError_t Run(const ConvCall& call, const RowStreamingShape& shape,
                RowStreamingProblem problem, Stage stage, cudaStream_t stream) {
  const ConvGeometry& g = call.g;
  if (!EncodeTiled(&problem.in, call.type, call.lhs,
                   {shape.in_c, shape.in_w, shape.in_h, g.N},
                   {64, kRowStreamingPixels, 1, 1})) {
    return cudaErrorInvalidValue;
  }
  problem.input = static_cast<const uint16_t*>(call.lhs);
  problem.w = static_cast<const uint16_t*>(call.rhs);
  problem.out = static_cast<uint16_t*>(call.result);
  problem.h = shape.h;
  problem.w_axis = shape.w;
  problem.in_h = static_cast<int>(shape.in_h);
  problem.in_w = static_cast<int>(shape.in_w);
  problem.in_c = static_cast<int>(shape.in_c);
  problem.out_c = static_cast<int>(shape.out_c);
  problem.channel_blocks = static_cast<int>(shape.channel_blocks());
  problem.w_tap = g.C * g.K;
  problem.values = static_cast<int>(shape.values());
  problem.row_values = static_cast<int>(shape.w.step * shape.out_c);
  problem.pairs = problem.row_values % 2 == 0 &&
                  shape.w.size * shape.out_c % 2 == 0 &&
                  shape.w.size % shape.w.step == 0;
  const int64_t cols = (shape.w.patches + 63) / 64;
  const int64_t rows = RowStrips(
      shape, g.N * cols, int64_t{kRowStreamingConsumers} * call.plan.blocks);
  problem.rows = static_cast<int>((shape.h.patches + rows - 1) / rows);
  problem.col_strips = FastDivmod<uint32_t>(cols);
  problem.row_strips = FastDivmod<uint32_t>(rows);
  problem.strips = static_cast<int>(g.N * cols * rows);
  return call.type == Type::kBf16
             ? Dispatch<__nv_bfloat16>(problem, shape, call.plan.blocks, stage,
                                       stream)
             : Dispatch<__half>(problem, shape, call.plan.blocks, stage,
                                stream);
}

}  // namespace

cudaError_t RowStreamingFprop(const ConvCall& call, Stage stage,
                              cudaStream_t stream) {
  RowStreamingProblem problem{};
  problem.w_in = call.g.K;
  problem.w_out = 1;
  return Run(call, FpropRowStreaming(call.g), problem, stage, stream);
}

cudaError_t RowStreamingDgrad(const ConvCall& call, Stage stage,
                              cudaStream_t stream) {
  RowStreamingProblem problem{};
  problem.w_in = 1;
  problem.w_out = call.g.K;
  return Run(call, DgradRowStreaming(call.g), problem, stage, stream);
}

}  // namespace jax_convbatch::hopper
