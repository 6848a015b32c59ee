// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/kernels/few_channels/few_channels_plan.h"

#include <algorithm>

#include "cuda/common/most_shared.h"
#include "cuda/sm90/problem/subproblems.h"

namespace jax_convbatch::hopper {
namespace {

constexpr int64_t kStages = 3;
constexpr int64_t kBox = 64 * 128;

int64_t RoundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t Tiles(const ConvGeometry& g, int64_t tile) {
  return g.N * CeilDiv(g.P * g.Q, tile);
}

int64_t FpropTile(const ConvGeometry& g, int multiprocessors) {
  // 64 channels of an element of a column are loaded in so many cycles.
  constexpr double kFilterRow = 10;
  const int rows = 16 * FewChannelsSteps(FewChannelsShape(g));
  auto share = [&](int64_t tiles) {
    return FewChannelsShare(g, tiles, multiprocessors);
  };
  return BestFewChannelsTile(
      g, multiprocessors,
      [&](int64_t tiles) {
        const double boxes = share(tiles) / 64;
        return FewChannelsCosts{450 * boxes, 1 / 30.0, 400,
                                kFilterRow * rows * boxes};
      },
      [&](int64_t tile) {
        return FewChannelsFpropBytes(g, tile, share(Tiles(g, tile))) <=
               kMostShared;
      });
}

int64_t WgradTile(const ConvGeometry& g, int multiprocessors) {
  return BestFewChannelsTile(
      g, multiprocessors,
      [](int64_t) { return FewChannelsCosts{450, 1 / 30.0, 400}; },
      [&](int64_t tile) {
        return FewChannelsWgradBytes(g, tile) <= kMostShared;
      });
}

// Pixels of a tile where each block has one, or 0 where it does not fit.
int64_t ShortTile(const ConvGeometry& g, int64_t n_tiles, int multiprocessors) {
  const int64_t of_image =
      multiprocessors / (n_tiles * std::max<int64_t>(g.N, 1));
  if (of_image == 0) return 0;
  const int64_t pixels = g.P * g.Q;
  const int64_t tile =
      std::max<int64_t>(64, RoundUp((pixels + of_image - 1) / of_image, 16));
  const int64_t blocks = g.N * ((pixels + tile - 1) / tile) * n_tiles;
  return IsShortFewChannels(g, tile, blocks) ? tile : 0;
}

}  // namespace

FewChannelsShape::FewChannelsShape(const ConvGeometry& g) {
  // Where taps lie side by side, a run is a filter row.
  const bool row = g.filter_dilation.w == 1 || g.S == 1;
  runs = row ? g.R : g.R * g.S;
  length = row ? g.S * g.C : g.C;
  run_cols = row ? 1 : g.S;
  run_col = row ? 0 : g.filter_dilation.w * g.C;
  step = g.stride.w * g.C;
  const int64_t start = -g.pad.w * g.C;
  odd = (step | run_col) % 2 != 0;
  origin = (start >= 0 ? start : start - 7) / 8 * 8;
  lead = odd ? 0 : (start - origin) % 2;
  first = start - origin - lead;
  pairs = (lead + length + 1) / 2;
  span = (run_cols - 1) * run_col + 2 * pairs + 2;
  step_h = g.filter_dilation.h;
}

int64_t FewChannelsShape::Pitch(const ConvGeometry& g, int64_t tile) const {
  const int64_t pixels = HasPartsOfRows(g) ? tile : g.Q;
  return RoundUp(first + (pixels - 1) * step + span, 8);
}

int64_t FewChannelsShape::RowsOfY(const ConvGeometry& g, int64_t tile) {
  if (tile % g.Q == 0) return std::min(g.P, tile / g.Q);
  return g.Q % tile == 0 ? 1 : std::min(g.P, (tile - 2) / g.Q + 2);
}

int64_t FewChannelsShape::Rows(const ConvGeometry& g, int64_t tile) {
  return (RowsOfY(g, tile) - 1) * g.stride.h + (g.R - 1) * g.filter_dilation.h +
         1;
}

int64_t FewChannelsShape::StageBytes(const ConvGeometry& g, int64_t tile,
                                     bool dy) const {
  const int64_t band = RoundUp(Rows(g, tile) * Pitch(g, tile) * 2, 128);
  return RoundUp(band + tile * 4, 1024) + (dy ? (tile + 63) / 64 * kBox : 0);
}

int FewChannelsSteps(const FewChannelsShape& shape) {
  for (const int steps : {2, 4, 7, 10, 13}) {
    if (shape.steps() <= steps) return steps;
  }
  return shape.is_full(kFullFewChannelsSteps) ? kFullFewChannelsSteps : 0;
}

int64_t FewChannelsShare(const ConvGeometry& g, int64_t tiles, int64_t blocks) {
  const int64_t boxes = CeilDiv(g.K, 64);
  const int64_t shares = std::max<int64_t>(1, blocks / tiles);
  return 64 * CeilDiv(boxes, std::min(boxes, shares));
}

int64_t FewChannelsFpropBytes(const ConvGeometry& g, int64_t tile,
                              int64_t share) {
  const FewChannelsShape shape(g);
  const int64_t filter = CeilDiv(FewChannelsSteps(shape), 4) * kBox;
  return 1024 + share / 64 * filter + 6 * kBox +
         kStages * shape.StageBytes(g, tile, false);
}

int64_t FewChannelsWgradBytes(const ConvGeometry& g, int64_t tile) {
  const FewChannelsShape shape(g);
  // At the end it holds one warpgroup's sums.
  return 1024 + std::max(kStages * shape.StageBytes(g, tile, true),
                         CeilDiv(shape.steps(), 4) * 2 * kBox);
}

int64_t FewChannelsShortBytes(const ConvGeometry& g, int64_t tile) {
  return 1024 + FewChannelsShape(g).StageBytes(g, tile, true);
}

bool IsShortFewChannels(const ConvGeometry& g, int64_t tile, int64_t blocks) {
  const int64_t n_tiles = (g.K + 63) / 64;
  return !HasPartsOfRows(g) &&
         blocks == g.N * ((g.P * g.Q + tile - 1) / tile) * n_tiles &&
         tile <= kFewChannelsShortBoxes * 64 &&
         FewChannelsShortBytes(g, tile) <= kMostShared;
}

std::optional<Plan> PlanFewChannelsFprop(const ConvGeometry& g,
                                         int multiprocessors) {
  if (FewChannelsSteps(FewChannelsShape(g)) == 0) return std::nullopt;
  // Whether they run does not depend on N: a block has room for all channels.
  if (FewChannelsFpropBytes(g, 64, RoundUp(g.K, 64)) > kMostShared) {
    return std::nullopt;
  }
  const int64_t tile = FpropTile(g, multiprocessors);
  if (tile == 0) return std::nullopt;
  return Plan{
      static_cast<int>(tile), 64,
      multiprocessors,        0,
      Path::kFewChannels,     g.taps() > 1 && (g.K % 4 == 0 || g.K <= 64)};
}

std::optional<Plan> PlanFewChannelsDgrad(const ConvGeometry& g,
                                         int multiprocessors) {
  if (g.stride.h != 1 || g.stride.w != 1) return std::nullopt;
  const ConvGeometry f = DgradAsFprop(g);
  if (!FitsIn32Bits(f)) return std::nullopt;
  return PlanFewChannelsFprop(f, multiprocessors);
}

bool BandsOfDy(const ConvGeometry& g) {
  return g.K < g.C && g.stride.h == 1 && g.stride.w == 1;
}

std::optional<Plan> PlanFewChannelsWgrad(const ConvGeometry& given,
                                         int multiprocessors) {
  const ConvGeometry g = BandsOfDy(given) ? DgradAsFprop(given) : given;
  if (!FitsIn32Bits(g)) return std::nullopt;
  const FewChannelsShape shape(g);
  if (FewChannelsSteps(shape) == 0 || g.K % 8 != 0) return std::nullopt;
  const int64_t n_tiles = (g.K + 63) / 64;
  int64_t tile = ShortTile(g, n_tiles, multiprocessors);
  if (tile == 0) tile = WgradTile(g, multiprocessors);
  if (tile == 0) return std::nullopt;
  const int64_t tiles = Tiles(g, tile);
  const int64_t splits =
      std::min(tiles, std::max<int64_t>(1, multiprocessors / n_tiles));
  const int64_t partial = (shape.steps() + 3) / 4 * 2 * kBox;
  const int64_t blocks = splits * n_tiles;
  return Plan{static_cast<int>(tile),   64,
              static_cast<int>(blocks), blocks * partial,
              Path::kFewChannels,       g.taps() > 1};
}

}  // namespace jax_convbatch::hopper
