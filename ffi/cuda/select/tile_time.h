// SPDX-License-Identifier: Apache-2.0
// How long a convolution takes by tiles of some size. Host only.
#pragma once

#include <vector>

#include "cuda/select/conv_tiles.h"

namespace jax_convbatch::hopper {

// The constants of the model, in microseconds, of a stage of a tile of 128x128
// where it is one of tiles: `python -m benchmarks fit` fits them.
struct TileConstants {
  // By TileKernel, up to the last that the model knows.
  struct Kernel {
    double products, boxes, stage;  // of a stage
    double begin, end;              // of a tile; `end` grows with its size
  } kernel[static_cast<int>(TileKernel::kHalo) + 1];
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
    TileKernel kernel;
    bool dgrad;
    double times;
  };
  std::vector<Factor> factors;  // 1 where a tile has none
};

struct TimedTile {
  Tile tile;
  TileWork work;
  double us;  // on so many SMs, as far as it tells tiles apart
};

// The tiles of a convolution, those that take the least first. Of those that
// take as long, the order is that of ConvTiles().
std::vector<TimedTile> TimedTiles(const TiledConv& conv, int multiprocessors);

Plan PlanOf(const TimedTile& timed, int multiprocessors);

// The plan of the first that is accepted. It skips tiles wider than 64 channels
// that are at least half empty, but those of 16 bits whose weights stay in
// shared memory, for 33 to 63 outputs. A single-wave tile gives way to one of
// fewer pixels that are as many: that is less work, whatever was fitted.
Plan CheapestTile(const TiledConv& conv, int multiprocessors,
                  bool (*accepts)(const Tile&));

// The constants fitted on an H200 (tile_constants.cc).
const TileConstants& ConstantsOf(Op op, Type type);

}  // namespace jax_convbatch::hopper
