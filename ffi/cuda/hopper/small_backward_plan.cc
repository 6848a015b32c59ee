#include "cuda/hopper/small_backward_plan.h"

#include <algorithm>
#include <cstdint>

namespace jax_convbatch::hopper {
namespace {

// Sixteens of places of a tile of several images, at most: one for each warp.
constexpr int kSixteens = 12;

bool Fits(const ConvGeometry& g, const SmallGrid& grid) {
  return grid.pixels * g.K <= 4 * kMostSmallFours &&
         SmallBackwardBytes(g, grid) <= kGridShared;
}

}  // namespace

bool HasSmallBackward(const ConvGeometry& g, Type type) {
  return type == Type::kTf32 && IsGridded(g) && Fits(g, GridOf(g, 1));
}

SmallGrid SmallGridOf(const ConvGeometry& g, int multiprocessors) {
  return LargestGrid(g, kSixteens, multiprocessors,
                     [&](const SmallGrid& grid) { return Fits(g, grid); });
}

int64_t SmallBackwardBytes(const ConvGeometry& g, const SmallGrid& grid) {
  const int64_t pixels = grid.pixels, places = grid.places;
  return 4 * (g.w_size() + (places + pixels) * (g.C + g.K)) +
         kMostSmallFours / 2 + 2 * (places + pixels);
}

int SmallBackwardBlocks(const ConvGeometry& g, const SmallGrid& grid,
                        int multiprocessors) {
  const int64_t tiles = (g.N + grid.images - 1) / grid.images;
  const bool two =
      g.C + g.K < 64 && 2 * (SmallBackwardBytes(g, grid) + 2048) <= kGridShared;
  return static_cast<int>(
      std::min<int64_t>(tiles, int64_t{multiprocessors} * (two ? 2 : 1)));
}

int64_t SmallBackwardWorkspace(const ConvGeometry& g, int multiprocessors) {
  const SmallGrid grid = SmallGridOf(g, multiprocessors);
  const int64_t bytes =
      SmallBackwardBlocks(g, grid, multiprocessors) * (g.w_size() + g.K) * 4;
  return (bytes + 255) / 256 * 256;
}

}  // namespace jax_convbatch::hopper
