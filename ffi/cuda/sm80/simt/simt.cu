// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>

#include "cuda/common/launch.cuh"
#include "cuda/sm80/direct/add_partials.cuh"
#include "cuda/sm80/simt/conv.cuh"
#include "cuda/sm80/simt/simt.h"
#include "cuda/sm80/simt/simt_subproblems.h"
#include "cuda/sm80/simt/wgrad.cuh"
#include "cuda/sm90/kernels/bf16x6/bf16x6.h"

namespace jax_convbatch::simt {
namespace {

Subproblem MakeSubproblem(const hopper::SubproblemAxes& axes, int64_t n,
                          int64_t in_channels) {
  const auto &h = axes.h, &w = axes.w;
  Subproblem sub{};
  sub.taps_h = h.taps;
  sub.taps_w = w.taps;
  sub.rows = static_cast<int>(h.count);
  sub.cols = static_cast<int>(w.count);
  sub.pixels = static_cast<int>(n * h.count * w.count);
  sub.steps = Steps(axes, in_channels);
  sub.in_h = static_cast<int>(h.input);
  sub.in_w = static_cast<int>(w.input);
  sub.in_step_h = h.input_step;
  sub.in_step_w = w.input_step;
  sub.out_h = static_cast<int>(h.output);
  sub.out_w = static_cast<int>(w.output);
  sub.out_step_h = h.output_step;
  sub.out_step_w = w.output_step;
  return sub;
}

ConvProblem MakeConv(Op op, const Call& call, float* out_data) {
  const ConvGeometry& g = call.g;
  const bool fprop = op == Op::kFprop;
  const auto in = fprop ? hopper::InputOf(g) : hopper::OutputOf(g);
  const auto out = fprop ? hopper::OutputOf(g) : hopper::InputOf(g);
  const auto subs = SubproblemsOf(op, g);
  ConvProblem p{};
  p.in = static_cast<const float*>(call.lhs);
  p.w = static_cast<const float*>(call.rhs);
  p.split = call.plan.splits > 1;
  p.out = out_data;
  p.height = static_cast<int>(in.h);
  p.width = static_cast<int>(in.w);
  p.channels = static_cast<int>(in.c);
  p.out_height = static_cast<int>(out.h);
  p.out_width = static_cast<int>(out.w);
  p.out_channels = static_cast<int>(out.c);
  p.filter_width = static_cast<int>(g.S);
  p.depth_blocks = static_cast<int>((in.c + kDepth - 1) / kDepth);
  p.subs = static_cast<int>(subs.size());
  p.k_slices = KSlices(op, g, subs);
  p.k_slice_size = out.n * out.h * out.w * out.c;
  p.n_tiles =
      static_cast<int>((out.c + call.plan.tile_n - 1) / call.plan.tile_n);
  int tiles = 0;
  for (int i = 0; i < p.subs; ++i) {
    p.sub[i] = MakeSubproblem(subs[i], g.N, in.c);
    p.sub[i].first_tile = tiles;
    tiles += (p.sub[i].pixels + call.plan.tile_m - 1) / call.plan.tile_m;
  }
  p.tiles = tiles * p.n_tiles;
  return p;
}

WgradProblem MakeWgrad(const Call& call, float* dw) {
  const ConvGeometry& g = call.g;
  WgradProblem p{};
  p.x = static_cast<const float*>(call.lhs);
  p.dy = static_cast<const float*>(call.rhs);
  p.dw = dw;
  p.height = static_cast<int>(g.H);
  p.width = static_cast<int>(g.W);
  p.channels = static_cast<int>(g.C);
  p.filter_width = static_cast<int>(g.S);
  p.rows = static_cast<int>(g.P);
  p.cols = static_cast<int>(g.Q);
  p.out_channels = static_cast<int>(g.K);
  p.filter_rows = static_cast<int>(g.taps() * g.C);
  p.pixels = static_cast<int>(g.N * g.P * g.Q);
  p.workers = call.plan.splits;
  p.stride_h = static_cast<int>(g.stride.h);
  p.stride_w = static_cast<int>(g.stride.w);
  p.pad_h = static_cast<int>(g.pad.h);
  p.pad_w = static_cast<int>(g.pad.w);
  p.dilation_h = static_cast<int>(g.filter_dilation.h);
  p.dilation_w = static_cast<int>(g.filter_dilation.w);
  p.n_tiles = static_cast<int>((g.K + call.plan.tile_n - 1) / call.plan.tile_n);
  p.tiles = (p.filter_rows + call.plan.tile_m - 1) / call.plan.tile_m *
            static_cast<int>(p.n_tiles);
  return p;
}

// Adds a sum's K slices, in order.
__global__ void __launch_bounds__(256)
    AddKSlices(int k_slices, int64_t size, const float4* __restrict__ partials,
               float4* __restrict__ out) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < size;
       at += step) {
    float4 sum = partials[at];
    for (int i = 1; i < k_slices; ++i) {
      const float4 next = partials[i * size + at];
      sum = make_float4(sum.x + next.x, sum.y + next.y, sum.z + next.z,
                        sum.w + next.w);
    }
    out[at] = sum;
  }
}

cudaError_t RunAddKSlices(int k_slices, int64_t size, const float* partials,
                          void* result, Stage stage, cudaStream_t stream) {
  if (stage == Stage::kPrepare) {
    cudaFuncAttributes loads;
    return cudaFuncGetAttributes(&loads, &AddKSlices);
  }
  const int64_t blocks = std::min<int64_t>((size / 4 + 255) / 256, 1 << 16);
  AddKSlices<<<static_cast<unsigned>(blocks), 256, 0, stream>>>(
      k_slices, size / 4, reinterpret_cast<const float4*>(partials),
      static_cast<float4*>(result));
  return cudaGetLastError();
}

template <typename T>
cudaError_t RunTile(Op op, const Call& call, float* out, Stage stage,
                    cudaStream_t stream) {
  const int blocks = call.plan.blocks;
  switch (op) {
    case Op::kFprop:
      return LaunchOrPrepare(&ConvKernel<T, false>, MakeConv(op, call, out),
                             blocks, T::kThreads, T::kSharedBytes, stage,
                             stream);
    case Op::kDgrad:
      return LaunchOrPrepare(&ConvKernel<T, true>, MakeConv(op, call, out),
                             blocks, T::kThreads, T::kSharedBytes, stage,
                             stream);
    default:
      return LaunchOrPrepare(&WgradKernel<T>, MakeWgrad(call, out), blocks,
                             T::kThreads, T::kSharedBytes, stage, stream);
  }
}

cudaError_t RunTiles(Op op, const Call& call, float* out, Stage stage,
                     cudaStream_t stream) {
  if (call.plan.tile_m == SmallTile::kM) {
    return RunTile<SmallTile>(op, call, out, stage, stream);
  }
  if (call.plan.tile_n == NarrowTile::kN) {
    return RunTile<NarrowTile>(op, call, out, stage, stream);
  }
  return RunTile<LargeTile>(op, call, out, stage, stream);
}

// Whose sums of K slices, where blocks share them, follow the filter's terms.
cudaError_t RunBf16x6(Op op, const Call& call, Stage stage,
                      cudaStream_t stream) {
  const ConvGeometry& g = call.g;
  const Plan& plan = call.plan;
  const hopper::Bf16x6Call bf16x6{
      g,
      {plan.tile_m, plan.tile_n, plan.k_slices, plan.blocks, plan.splits > 1,
       plan.workspace},
      call.lhs,
      call.rhs,
      call.result,
      call.workspace};
  const cudaError_t error =
      hopper::RunBf16x6(Bf16x6Op(op), bf16x6, stage, stream);
  if (error != cudaSuccess || plan.splits == 1) return error;
  return RunAddKSlices(
      plan.splits, op == Op::kFprop ? g.y_size() : g.x_size(),
      static_cast<const float*>(call.workspace) +
          hopper::Bf16x6FilterBytes(Bf16x6Op(op), g) / int64_t{sizeof(float)},
      call.result, stage, stream);
}

}  // namespace

cudaError_t Run(Op op, const Call& call, Stage stage, cudaStream_t stream) {
  const ConvGeometry& g = call.g;
  const int splits = call.plan.splits;
  if (call.plan.bf16x6) return RunBf16x6(op, call, stage, stream);
  // Where several blocks share a result, each writes its own.
  float* const partials = static_cast<float*>(call.workspace);
  float* const out = splits > 1 ? partials : static_cast<float*>(call.result);
  const cudaError_t error = RunTiles(op, call, out, stage, stream);
  if (error != cudaSuccess || splits == 1) return error;
  if (op != Op::kWgrad) {
    const int64_t size = op == Op::kFprop ? g.y_size() : g.x_size();
    return RunAddKSlices(splits, size, partials, call.result, stage, stream);
  }
  return direct::AddPartialsOrPrepare<float>(splits, g.w_size(), partials,
                                             call.result, stage, stream);
}

}  // namespace jax_convbatch::simt
