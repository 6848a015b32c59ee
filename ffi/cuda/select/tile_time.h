// SPDX-License-Identifier: Apache-2.0
// How long a convolution takes by tiles of some size. Host only.
#ifndef JAX_CONVBATCH_CUDA_SELECT_TILE_TIME_H_
#define JAX_CONVBATCH_CUDA_SELECT_TILE_TIME_H_

#include <string>
#include <vector>

#include "cuda/select/conv_tiles.h"
#include "cuda/sm90/problem/op.h"

namespace jax_convbatch::hopper {

// The constants of the model, in microseconds, of a stage of a tile of 128x128
// where it is one of tiles: `python -m benchmarks fit` fits them.
struct TileConstants {
  // By TileKernel.
  struct Kernel {
    double products, boxes, stage;  // of a stage
    double begin, end;              // of a tile; `end` grows with its size
  } kernel[3];
  // What a stage takes on average where the power limit slows all SMs down.
  double power_products, power_boxes;
  double launch;
  double whole_waves;  // how much of a last wave counts as a whole one
  double crowded;      // of single-wave tiles: what others' copies cost
  // Copies are this much slower in launches that take far longer than so many
  // microseconds, and power_boxes is this much more.
  double long_boxes, long_us, long_power;
  struct Factor {
    int m, n;
    bool transposed, dgrad;
    double times;
  };
  std::vector<Factor> factors;  // 1 where a tile has none
};

// Microseconds on so many SMs, as far as they tell tiles apart.
double TileTime(Op op, Type type, const Tile& tile, const TileWork& work,
                int multiprocessors);

// Of the tiles that are accepted, the one that takes the least, the first of
// those that take as long.
template <typename Accepts>
Plan CheapestTile(Op op, const ConvGeometry& g, Type type, int multiprocessors,
                  Accepts accepts) {
  Plan plan{0, 0, multiprocessors, 0};
  double least = 0;
  for (const Tile& tile : ConvTiles(op, g, type)) {
    if (!accepts(tile)) continue;
    const TileWork work = WorkOf(op, g, type, tile);
    const double time = TileTime(op, type, tile, work, multiprocessors);
    if (plan.tile_m > 0 && time >= least) continue;
    least = time;
    plan.tile_m = tile.m;
    plan.tile_n = tile.n;
    plan.workspace = static_cast<int64_t>(work.transposed);
  }
  return plan;
}

// The constants fitted on an H100 (tile_constants.cc).
const TileConstants& ConstantsOf(Op op, Type type);

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SELECT_TILE_TIME_H_
