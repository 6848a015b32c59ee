// SPDX-License-Identifier: Apache-2.0
#include "cuda/select/tile_time.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <initializer_list>

namespace jax_convbatch::hopper {
namespace {

// Of numbers that hide each other: the most of them, and a little more where
// they are alike.
double Hidden(std::initializer_list<double> values, double power) {
  double sum = 0;
  for (const double value : values) sum += std::pow(value, power);
  return std::pow(sum, 1 / power);
}

double FactorOf(const TileConstants& constants, Op op, const Tile& tile) {
  for (const auto& each : constants.factors) {
    if (each.m == tile.m && each.n == tile.n && each.kernel == tile.kernel &&
        each.dgrad == (op == Op::kDgrad)) {
      return each.times;
    }
  }
  return 1;
}

// Waves of tiles, a stage of which takes as long as its products or its copies,
// whichever is longer; or what memory and power allow all SMs together. On an
// H100 a tile of 128x128 in bf16 takes 0.33 us a stage in launches of 200 us,
// and 0.46 in some of 1 ms, where one of 128x256 takes as long as ever for its
// products: it copies less for them.
double TileTime(const TiledConv& conv, const Tile& tile, const TileWork& work,
                int multiprocessors) {
  constexpr double kProducts = 0.34;  // us, to tell long launches
  constexpr double kBytesPerUs = 2.7e6, kWorkspacePerUs = 1e6;
  constexpr double kOtherLaunch = 2;  // that fills or reads it
  const TileConstants& c = ConstantsOf(conv.op, conv.type);
  const auto& kernel = c.kernel[static_cast<int>(tile.kernel)];
  const bool single = tile.kernel == TileKernel::kSingleWave;
  const double busy = work.tiles / multiprocessors;
  const double part = single ? 1 : c.whole_waves;
  const double waves =
      busy > 1 ? part * std::ceil(busy) + (1 - part) * busy : 1;
  // A block has no less than one of the longest tiles, and blocks of one tile
  // begin in their order, however long they are.
  const double of_wave =
      single ? (work.stages + work.longest) / 2 : work.stages;
  const double stages = std::max(waves * of_wave, work.longest);
  const double us = kProducts * busy * work.stages * work.products;
  const double square = (us / c.long_us) * (us / c.long_us);
  const double length = square / (1 + square);
  const double even = work.longest > 0 ? work.stages / work.longest : 1;
  const double crowd = single ? 1 + c.crowded * std::min(busy, 1.0) * even : 1;
  const double stage =
      Hidden({kernel.products * work.products,
              kernel.boxes * work.boxes * (1 + c.long_boxes * length) * crowd},
             4) +
      kernel.stage;
  const double tiles =
      FactorOf(c, conv.op, tile) *
      (stages * stage + waves * (kernel.begin + kernel.end * work.products));
  const double power =
      busy * work.stages *
      (c.power_products * work.products +
       c.power_boxes * work.boxes * (1 + c.long_power * length));
  double time = Hidden({tiles, power, work.bytes / kBytesPerUs}, 6) + c.launch +
                work.later;
  if (work.workspace > 0) {
    time += work.workspace / kWorkspacePerUs + kOtherLaunch;
  }
  return time;
}

}  // namespace

std::vector<TimedTile> TimedTiles(const TiledConv& conv, int multiprocessors) {
  std::vector<TimedTile> tiles;
  for (const Tile& tile : ConvTiles(conv)) {
    const TileWork work = WorkOf(conv, tile, multiprocessors);
    tiles.push_back({tile, work, TileTime(conv, tile, work, multiprocessors)});
  }
  std::stable_sort(
      tiles.begin(), tiles.end(),
      [](const TimedTile& a, const TimedTile& b) { return a.us < b.us; });
  return tiles;
}

Plan PlanOf(const TimedTile& timed, int multiprocessors) {
  Plan plan = WithKernel({timed.tile.m, timed.tile.n, multiprocessors,
                          static_cast<int64_t>(timed.work.workspace)},
                         timed.tile.kernel);
  plan.k_slices = timed.work.k_slices;
  return plan;
}

Plan CheapestTile(const TiledConv& conv, int multiprocessors,
                  bool (*accepts)(const Tile&)) {
  // Where memory takes longest the model reckons them as fast as others: of
  // 28x28 240->16, one tap, in bf16 at batch 64 64x128 took 29 us, 256x32 10
  // (H200).
  const int64_t most_channels =
      std::max<int64_t>(65, (conv.out.c + 31) / 32 * 64);
  // Of 112x112 40->96, dgrad, 60 us by 64x128, 67 by 256x64.
  const bool some =
      conv.type != Type::kTf32 && 32 < conv.out.c && conv.out.c < 64;
  auto is_left = [&](const TimedTile& each) {
    const bool wide = each.tile.n >= most_channels;
    return accepts(each.tile) && (!wide || (some && each.work.keeps_weights));
  };
  std::vector<TimedTile> tiles = TimedTiles(conv, multiprocessors);
  tiles.erase(std::remove_if(tiles.begin(), tiles.end(), std::not_fn(is_left)),
              tiles.end());
  const TimedTile* best = &tiles.front();
  for (const TimedTile& each : tiles) {
    if (best->tile.kernel == TileKernel::kSingleWave &&
        each.tile.kernel == best->tile.kernel && each.tile.n == best->tile.n &&
        each.tile.m < best->tile.m && each.work.tiles == best->work.tiles) {
      best = &each;
    }
  }
  return PlanOf(*best, multiprocessors);
}

}  // namespace jax_convbatch::hopper
