// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cuda/common/most_shared.h"
#include "cuda/sm90/arch/launch.cuh"
#include "cuda/sm90/kernels/small/small_backward.h"
#include "cuda/sm90/kernels/small/small_grid_conv.cuh"
#include "cuda/sm90/kernels/small/small_grid_conv.h"
#include "cuda/sm90/problem/given_epilogue.h"

namespace jax_convbatch::hopper {
namespace {

constexpr int kProducts = 7;  // of 64 places of several images
// Tiles that a block has, so that one comes while another is multiplied.
constexpr int kTurns = 2;

int64_t Channels(Op op, const ConvGeometry& g) {
  return op == Op::kFprop ? g.C : g.K;
}

int64_t BytesOf(Op op, const ConvGeometry& g, const SmallGrid& grid) {
  const int words = grid.words(static_cast<int>(Channels(op, g)));
  return 4 * (g.w_size() + 2 * words) + 16 + 2 * grid.places;
}

bool Fits(Op op, const ConvGeometry& g, const SmallGrid& grid) {
  return kGridBlocks * (BytesOf(op, g, grid) + 2048) <= kMostShared;
}

template <int kIn, int kOut, bool kFlipped>
cudaError_t Launch(Op op, const ConvCall& call, Stage stage,
                   cudaStream_t stream) {
  const ConvGeometry& g = call.g;
  const int multiprocessors = call.plan.blocks;
  const auto kernel = &SmallGridKernel<kIn, kOut, kFlipped>;
  SmallGridProblem p{};
  const int64_t takers = int64_t{multiprocessors} * kGridBlocks;
  p.grid = LargestGrid(g, kProducts, kTurns * takers,
                       [&](const auto& grid) { return Fits(op, g, grid); });
  const int bytes = static_cast<int>(BytesOf(op, g, p.grid));
  // To one limit: threads may launch the kernel for several geometries at once.
  const cudaError_t raised = RaiseSharedMemory(kernel, kMostShared);
  if (raised != cudaSuccess || stage == Stage::kPrepare) return raised;
  if (!EncodeGrid(&p.in, g, p.grid, kIn, call.lhs, /*rounded=*/!kFlipped)) {
    return cudaErrorInvalidValue;
  }
  p.w = static_cast<const float*>(call.rhs);
  p.out = static_cast<float*>(call.result);
  p.N = static_cast<int>(g.N);
  p.H = static_cast<int>(g.H);
  p.W = static_cast<int>(g.W);
  p.tiles = static_cast<int>((g.N + p.grid.images - 1) / p.grid.images);
  const Epilogue epilogue = EpilogueOf(call);
  const int64_t tiles = std::min<int64_t>(p.tiles, takers);
  p.parts =
      static_cast<int>(std::clamp<int64_t>(takers / tiles, 1, p.grid.blocks));
  kernel<<<static_cast<unsigned>(tiles * p.parts), kGridThreads, bytes,
           stream>>>(p, epilogue);
  return cudaGetLastError();
}

}  // namespace

bool HasSmallGridConv(Op op, const ConvGeometry& g) {
  if (op == Op::kWgrad || !IsGridded(g)) return false;
  // A backward pass in one kernel has these bits.
  return Fits(op, g, GridOf(g, 1)) ||
         (op == Op::kDgrad && HasSmallBackward(g, Type::kTf32));
}

cudaError_t SmallGridConv(Op op, const ConvCall& call, Stage stage,
                          cudaStream_t stream) {
  const bool fprop = op == Op::kFprop;
  switch (call.g.C * 100 + call.g.K) {
    case 1632:
      return fprop ? Launch<16, 32, false>(op, call, stage, stream)
                   : Launch<32, 16, true>(op, call, stage, stream);
    case 3216:
      return fprop ? Launch<32, 16, false>(op, call, stage, stream)
                   : Launch<16, 32, true>(op, call, stage, stream);
    case 3232:
      return fprop ? Launch<32, 32, false>(op, call, stage, stream)
                   : Launch<32, 32, true>(op, call, stage, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace jax_convbatch::hopper
