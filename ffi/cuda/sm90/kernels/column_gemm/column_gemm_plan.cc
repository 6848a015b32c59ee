// SPDX-License-Identifier: Apache-2.0
// The tiles of products of columns.
#include <algorithm>

#include "cuda/sm90/kernels/column_gemm/column_gemm.h"

namespace jax_convbatch::hopper {
namespace {

// Of a tile, microseconds for 1000 channels of columns on an H200 where the
// multiplier is what it waits for.
struct Tile {
  int m, n;
  double multiplies;
};
constexpr Tile kTiles[] = {{128, 128, 11.3}, {128, 64, 7.0}, {64, 64, 5.2}};
// And to read a row of them, which tiles of the same rows share.
constexpr double kReads = 0.123;

}  // namespace

ColumnGemmPlan PlanColumnGemm(const ConvGeometry& images, int multiprocessors) {
  const int64_t rows = images.N * images.output_pixels();
  ColumnGemmPlan best{};
  double least = 0;
  for (const Tile& tile : kTiles) {
    const int64_t beside = (images.K + tile.n - 1) / tile.n;
    const int64_t tiles = (rows + tile.m - 1) / tile.m * beside;
    const int64_t waves = (tiles + multiprocessors - 1) / multiprocessors;
    const double time =
        waves * std::max(tile.multiplies, tile.m * kReads / beside);
    if (best.tile_m == 0 || time < least) {
      best = {tile.m, tile.n, multiprocessors};
      least = time;
    }
  }
  return best;
}

}  // namespace jax_convbatch::hopper
