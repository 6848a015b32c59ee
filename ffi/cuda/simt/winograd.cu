#include "cuda/hopper/conv_parts.h"
#include "cuda/launch.cuh"
#include "cuda/simt/parts.h"
#include "cuda/simt/winograd.cuh"
#include "cuda/simt/winograd_wgrad.cuh"

namespace jax_convbatch::simt {
namespace {

WinogradProblem MakeProblem(Op op, const Call& call, float* out_data) {
  const ConvGeometry& g = call.g;
  const bool fprop = op == Op::kFprop;
  const auto in = fprop ? hopper::InputOf(g) : hopper::OutputOf(g);
  const auto out = fprop ? hopper::OutputOf(g) : hopper::InputOf(g);
  using T = WinogradTile;
  WinogradProblem p{};
  p.in = static_cast<const float*>(call.lhs);
  p.u = static_cast<const float*>(call.workspace);
  p.w = static_cast<const float*>(call.rhs);
  p.turned = !fprop;
  p.split = call.plan.splits > 1;
  p.out = out_data;
  p.height = static_cast<int>(in.h);
  p.width = static_cast<int>(in.w);
  p.channels = static_cast<int>(in.c);
  p.out_height = static_cast<int>(out.h);
  p.out_width = static_cast<int>(out.w);
  p.out_channels = static_cast<int>(out.c);
  p.pad_h = static_cast<int>(fprop ? g.pad.h : 2 - g.pad.h);
  p.pad_w = static_cast<int>(fprop ? g.pad.w : 2 - g.pad.w);
  p.tiles_h = (p.out_height + 1) / 2;
  p.tiles_w = (p.out_width + 1) / 2;
  p.tiles = static_cast<int>(out.n) * p.tiles_h * p.tiles_w;
  p.blocks_of_depth = (p.channels + T::kDepth - 1) / T::kDepth;
  p.chunks = WinogradChunks(op, g);
  p.chunk_size = out.n * out.h * out.w * out.c;
  p.n_tiles = (p.out_channels + T::kChannels - 1) / T::kChannels;
  p.blocks = (p.tiles + T::kRows - 1) / T::kRows * p.n_tiles;
  return p;
}

WinogradWgradProblem MakeWgradProblem(const Call& call, float* dw) {
  const ConvGeometry& g = call.g;
  using T = WinogradTile;
  WinogradWgradProblem p{};
  p.x = static_cast<const float*>(call.lhs);
  p.dy = static_cast<const float*>(call.rhs);
  p.dw = dw;
  p.height = static_cast<int>(g.H);
  p.width = static_cast<int>(g.W);
  p.channels = static_cast<int>(g.C);
  p.out_height = static_cast<int>(g.P);
  p.out_width = static_cast<int>(g.Q);
  p.out_channels = static_cast<int>(g.K);
  p.pad_h = static_cast<int>(g.pad.h);
  p.pad_w = static_cast<int>(g.pad.w);
  p.tiles_h = (p.out_height + 1) / 2;
  p.tiles_w = (p.out_width + 1) / 2;
  p.tiles = static_cast<int>(g.N) * p.tiles_h * p.tiles_w;
  p.workers = call.plan.splits;
  p.n_tiles = (p.out_channels + T::kChannels - 1) / T::kChannels;
  p.blocks = (p.channels + T::kRows - 1) / T::kRows * p.n_tiles;
  return p;
}

template <bool kDgrad>
cudaError_t TransformFilter(const Call& call, Stage stage,
                            cudaStream_t stream) {
  if (stage == Stage::kPrepare) {
    cudaFuncAttributes loads;
    return cudaFuncGetAttributes(&loads, &TransformFilters<kDgrad>);
  }
  const ConvGeometry& g = call.g;
  const int64_t tiles = (g.C + 31) / 32 * ((g.K + 31) / 32);
  TransformFilters<kDgrad><<<static_cast<unsigned>(tiles), 256, 0, stream>>>(
      static_cast<int>(g.C), static_cast<int>(g.K),
      static_cast<const float*>(call.rhs), static_cast<float*>(call.workspace));
  return cudaGetLastError();
}

}  // namespace

cudaError_t RunWinograd(Op op, const Call& call, float* out, Stage stage,
                        cudaStream_t stream) {
  using T = WinogradTile;
  const int blocks = call.plan.blocks;
  if (op == Op::kWgrad) {
    return LaunchOrPrepare(&WinogradWgradKernel, MakeWgradProblem(call, out),
                           blocks, T::kThreads, T::kSharedBytes, stage, stream);
  }
  const cudaError_t error = op == Op::kFprop
                                ? TransformFilter<false>(call, stage, stream)
                                : TransformFilter<true>(call, stage, stream);
  if (error != cudaSuccess) return error;
  return LaunchOrPrepare(&WinogradKernel, MakeProblem(op, call, out), blocks,
                         T::kThreads, T::kSharedBytes, stage, stream);
}

}  // namespace jax_convbatch::simt
