// SPDX-License-Identifier: Apache-2.0
#include "cuda/cudnn/tile_cost.h"

#include <algorithm>
#include <cmath>

namespace jax_convbatch::cudnn {
namespace {

struct Tile {
  int64_t rows, columns;
};

// By cuDNN's number of its size, as the names of its kernels say.
std::optional<Tile> TileOf(int64_t size) {
  switch (size) {
    case 0:
      return Tile{128, 128};
    case 1:
      return Tile{128, 64};
    case 2:
      return Tile{128, 32};
    case 3:
      return Tile{256, 128};
    case 4:
      return Tile{256, 64};
    case 5:
      return Tile{64, 64};
    case 6:
      return Tile{128, 256};
    case 7:
      return Tile{64, 128};
    case 8:
      return Tile{64, 32};
    case 9:
      return Tile{64, 256};
    case 16:
      return Tile{256, 32};
    case 18:
      return Tile{64, 192};
    case 19:
      return Tile{128, 192};
    default:
      return std::nullopt;
  }
}

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

// A step of a tile's sums takes as long as its products or its copies,
// whichever is longer. The tiles of a cluster share copies: those of the same
// rows what they read of x or dy, those of the same columns the filter.
// Clusters that are filled in part take as long as whole ones; a last wave of
// tiles that is not full, not quite, and a first one that is not full hardly
// less. The constants were fitted to 336 convolutions of an H100 in bf16 and
// f32 with 2 to 40 configurations each: the cheapest takes 1.024 times as long
// as the fastest in the mean, the heuristics' first 1.047; kLeast to 239 more
// of an H200 (docs/research_log/draws.md).
std::optional<double> TileCost(const Gemm& gemm, const Config& config,
                               int multiprocessors) {
  constexpr double kCopies = 0.5, kShared = 0.8, kFixed = 0.2;
  constexpr double kWaves = 0.1, kLeast = 0.6;
  // Tiles of a cluster, down the rows and along the columns.
  const int64_t down = config.Knob(CUDNN_KNOB_TYPE_TILE_CGA_M, 0);
  const int64_t along = config.Knob(CUDNN_KNOB_TYPE_TILE_CGA_N, 0);
  if (!config.Has(CUDNN_KNOB_TYPE_TILE_SIZE) || down <= 0 || along <= 0 ||
      down * along > kMostOfCluster) {
    return std::nullopt;
  }
  const auto tile = TileOf(config.Knob(CUDNN_KNOB_TYPE_TILE_SIZE, 0));
  if (!tile) return std::nullopt;
  const double rows = tile->rows / 128.0, columns = tile->columns / 128.0;
  const double copies =
      rows / std::pow(along, kShared) + columns / std::pow(down, kShared);
  const double step = std::max(rows * columns, kCopies * copies) +
                      kFixed * (rows + columns) / 2;
  const int64_t tiles = CeilDiv(gemm.rows, tile->rows * down) * down *
                        CeilDiv(gemm.columns, tile->columns * along) * along;
  // Of tiles that run at once.
  const int64_t wave = multiprocessors / (down * along) * (down * along);
  const double waves = static_cast<double>(tiles) / static_cast<double>(wave);
  return step *
         (kWaves * std::ceil(waves) + (1 - kWaves) * std::max(waves, kLeast));
}

}  // namespace jax_convbatch::cudnn
