#include "cuda/hopper/conv_parts.h"
#include "cuda/simt/parts.h"
#include "cuda/simt/winograd.cuh"

namespace jax_convbatch::simt {
namespace {

WinogradProblem MakeProblem(Op op, const Call& call, void* chunks) {
  const ConvGeometry& g = call.g;
  const bool fprop = op == Op::kFprop;
  const auto in = fprop ? hopper::InputOf(g) : hopper::OutputOf(g);
  const auto out = fprop ? hopper::OutputOf(g) : hopper::InputOf(g);
  using T = WinogradTile;
  WinogradProblem p{};
  p.in = static_cast<const float*>(call.lhs);
  p.u = static_cast<const float*>(call.workspace);
  p.split = call.plan.splits > 1;
  p.out = static_cast<float*>(p.split ? chunks : call.result);
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
  p.blocks = (p.tiles + T::kTiles - 1) / T::kTiles * p.n_tiles;
  return p;
}

}  // namespace

cudaError_t RunWinograd(Op op, const Call& call, void* chunks, Stage stage,
                        cudaStream_t stream) {
  const auto transform =
      op == Op::kFprop ? &TransformFilters<false> : &TransformFilters<true>;
  const cudaError_t error = cudaFuncSetAttribute(
      &WinogradKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
      WinogradTile::kSharedBytes);
  if (error != cudaSuccess) return error;
  if (stage == Stage::kPrepare) {
    cudaFuncAttributes loads;
    return cudaFuncGetAttributes(&loads, transform);
  }
  const WinogradProblem p = MakeProblem(op, call, chunks);
  const int64_t tiles = (call.g.C + 31) / 32 * ((call.g.K + 31) / 32);
  transform<<<static_cast<unsigned>(tiles), 256, 0, stream>>>(
      static_cast<int>(call.g.C), static_cast<int>(call.g.K),
      static_cast<const float*>(call.rhs), static_cast<float*>(call.workspace));
  WinogradKernel<<<call.plan.blocks, WinogradTile::kThreads,
                   WinogradTile::kSharedBytes, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace jax_convbatch::simt
