// SPDX-License-Identifier: Apache-2.0
#include "cuda/common/launch.cuh"
#include "cuda/sm80/direct/add_partials.cuh"
#include "cuda/sm90/kernels/depthwise/depthwise_toeplitz.cuh"
#include "cuda/sm90/kernels/depthwise/depthwise_toeplitz.h"
#include "cuda/sm90/kernels/depthwise/depthwise_toeplitz_kinds.h"

namespace jax_convbatch::direct {
namespace {

ToeplitzProblem ProblemOf(Op op, const Call& call, const ToeplitzShape& s) {
  auto narrow = [](int64_t value) { return static_cast<int>(value); };
  ToeplitzProblem p{};
  p.in = call.lhs;
  p.filter = call.rhs;
  p.out = op == Op::kWgrad ? call.workspace : call.result;
  p.in_h = narrow(s.in_h), p.in_w = narrow(s.in_w);
  p.out_h = narrow(s.out_h), p.out_w = narrow(s.out_w);
  p.filter_h = narrow(s.filter_h), p.filter_w = narrow(s.filter_w);
  p.pad_h = narrow(s.pad_h), p.pad_w = narrow(s.pad_w);
  p.channels = narrow(call.g.C);
  p.flipped = op == Op::kDgrad;
  p.part_h = narrow(s.part_h), p.part_w = narrow(s.part_w);
  p.items = narrow(s.items);
  p.down = narrow(s.down), p.across = narrow(s.across);
  p.workers = call.plan.workers;
  p.channel_tiles = call.plan.channel_tiles;
  return p;
}

template <typename T, bool kWgrad>
cudaError_t Launch(const Call& call, const ToeplitzShape& shape,
                   const ToeplitzProblem& p, Stage stage, cudaStream_t stream) {
  cudaError_t error = cudaErrorInvalidValue;
  ForToeplitzKind(shape.kind, [&](auto tiling) {
    using Tiling = decltype(tiling);
    if constexpr (!(kWgrad && Tiling::kSequence)) {
      error = LaunchOrPrepare(&DepthwiseToeplitzKernel<T, Tiling, kWgrad>, p,
                              call.plan.blocks(), Tiling::kThreads,
                              shape.shared_bytes, stage, stream);
    }
  });
  if (!kWgrad || error != cudaSuccess) return error;
  return AddPartialsOrPrepare<T>(p.workers, call.g.w_size(), call.workspace,
                                 call.result, stage, stream);
}

template <typename T>
cudaError_t Launch(Op op, const Call& call, const ToeplitzShape& shape,
                   const ToeplitzProblem& p, Stage stage, cudaStream_t stream) {
  return op == Op::kWgrad ? Launch<T, true>(call, shape, p, stage, stream)
                          : Launch<T, false>(call, shape, p, stage, stream);
}

}  // namespace

cudaError_t RunDepthwiseToeplitz(Op op, const Call& call, Stage stage,
                                 cudaStream_t stream) {
  const auto shape = ToeplitzShapeOf(op, call.g);
  if (!shape) return cudaErrorInvalidValue;
  const ToeplitzProblem p = ProblemOf(op, call, *shape);
  switch (call.type) {
    case Type::kBf16:
      return Launch<__nv_bfloat16>(op, call, *shape, p, stage, stream);
    case Type::kF16:
      return Launch<__half>(op, call, *shape, p, stage, stream);
    default:
      return Launch<float>(op, call, *shape, p, stage, stream);
  }
}

}  // namespace jax_convbatch::direct
