// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/kernels/small/small_backward_plan.h"

#include <algorithm>
#include <cstdint>

#include "cuda/common/left_out.h"
#include "cuda/common/most_shared.h"

namespace jax_convbatch::hopper {
namespace {

// Of 64 places of a tile of several images, at most.
constexpr int kProducts = 7;
// Tiles that a block has, so that one comes while another is multiplied.
constexpr int kTurns = 2;

bool Fits(const ConvGeometry& g, const SmallGrid& grid) {
  return grid.box * g.K <= 4 * kMostSmallFours &&
         SmallBackwardBytes(g, grid) <= kMostShared;
}

}  // namespace

bool HasSmallBackward(const ConvGeometry& g, Type type) {
  return !IsLeftOut(Family::kSmallBackward) && type == Type::kTf32 &&
         IsGridded(g) && Fits(g, GridOf(g, 1));
}

SmallGrid SmallGridOf(const ConvGeometry& g, int multiprocessors) {
  return LargestGrid(g, kProducts, kTurns * multiprocessors,
                     [&](const SmallGrid& grid) { return Fits(g, grid); });
}

int64_t SmallBackwardBytes(const ConvGeometry& g, const SmallGrid& grid) {
  const int64_t stages = 2 * (grid.words(static_cast<int>(g.C)) +
                              grid.words(static_cast<int>(g.K)));
  // What a block adds up when it is done takes the stages' place.
  const int64_t sums = g.w_size() + 4 * kSmallBackwardThreads;
  return 4 * (g.w_size() + std::max(stages, sums)) + 16 + 2 * grid.places;
}

int SmallBackwardBlocks(const ConvGeometry& g, const SmallGrid& grid,
                        int multiprocessors) {
  const int64_t tiles = (g.N + grid.images - 1) / grid.images;
  return static_cast<int>(std::min<int64_t>(tiles, multiprocessors));
}

int64_t SmallBackwardWorkspace(const ConvGeometry& g, int multiprocessors) {
  const SmallGrid grid = SmallGridOf(g, multiprocessors);
  const int64_t bytes =
      SmallBackwardBlocks(g, grid, multiprocessors) * (g.w_size() + g.K) * 4;
  return (bytes + 255) / 256 * 256;
}

}  // namespace jax_convbatch::hopper
