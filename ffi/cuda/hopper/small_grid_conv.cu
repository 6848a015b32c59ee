#include <algorithm>

#include "cuda/hopper/launch.cuh"
#include "cuda/hopper/small_grid_conv.cuh"
#include "cuda/hopper/small_grid_conv.h"

namespace jax_convbatch::hopper {
namespace {

constexpr int64_t kBlocks = 3;  // of a multiprocessor, at most
constexpr int kSixteens = 16;   // of several images: two a warp

int64_t Channels(Op op, const ConvGeometry& g) {
  return op == Op::kFprop ? g.C : g.K;
}

int64_t BytesOf(Op op, const ConvGeometry& g, const SmallGrid& grid) {
  return 4 * (g.w_size() + (grid.places + grid.pixels) * Channels(op, g)) +
         2 * (grid.places + grid.pixels);
}

bool Fits(Op op, const ConvGeometry& g, const SmallGrid& grid) {
  return 2 * (BytesOf(op, g, grid) + 2048) <= kGridShared;
}

template <int kIn, int kOut, bool kFlipped>
cudaError_t Launch(Op op, const ConvCall& call, Stage stage,
                   cudaStream_t stream) {
  const ConvGeometry& g = call.g;
  const int multiprocessors = call.plan.blocks;
  const auto kernel = &SmallGridKernel<kIn, kOut, kFlipped>;
  SmallGridProblem p{};
  p.grid = LargestGrid(g, kSixteens, multiprocessors,
                       [&](const auto& grid) { return Fits(op, g, grid); });
  const int bytes = static_cast<int>(BytesOf(op, g, p.grid));
  // To one limit: threads may launch the kernel for several geometries at once.
  const cudaError_t raised = RaiseSharedMemory(kernel, kGridShared);
  if (raised != cudaSuccess || stage == Stage::kPrepare) return raised;
  p.in = static_cast<const float*>(call.lhs);
  p.w = static_cast<const float*>(call.rhs);
  p.out = static_cast<float*>(call.result);
  p.N = static_cast<int>(g.N);
  p.H = static_cast<int>(g.H);
  p.W = static_cast<int>(g.W);
  p.tiles = static_cast<int>((g.N + p.grid.images - 1) / p.grid.images);
  const int64_t each = std::min(kBlocks, kGridShared / (bytes + 2048));
  Epilogue epilogue{};
  epilogue.activation = Activation::kIdentity;
  if (call.epilogue != nullptr) epilogue = *call.epilogue;
  const auto blocks = std::min<int64_t>(p.tiles, multiprocessors * each);
  kernel<<<static_cast<unsigned>(blocks), kGridThreads, bytes, stream>>>(
      p, epilogue);
  return cudaGetLastError();
}

}  // namespace

bool HasSmallGridConv(Op op, const ConvGeometry& g) {
  return op != Op::kWgrad && IsGridded(g) && Fits(op, g, GridOf(g, 1));
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
