// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/kernels/few_channels/stem_tf32_plan.h"

#include <algorithm>
#include <cstdint>

#include "cuda/common/most_shared.h"
#include "cuda/sm90/kernels/few_channels/few_channels_plan.h"
#include "cuda/sm90/problem/subproblems.h"

namespace jax_convbatch::hopper {
namespace {

// Fewer leave most of a product's columns empty.
constexpr int64_t kFewestOutputs = 16;

// Where in a tile's row band a column's last element lies fits 16 bits.
bool IsNear(const ConvGeometry& halves, int64_t tile) {
  const FewChannelsShape shape(halves);
  const int64_t rows = (shape.runs - 1) / shape.run_cols * shape.step_h;
  const int64_t cols = shape.run_cols - 1;
  return 2 * (rows * shape.Pitch(halves, tile) + cols * shape.run_col +
              shape.length) <
         1 << 16;
}

// Patches of 16 channels, whose rows are one pixel each (FoldColumns) and fill
// a box of the copy engine: they have tiles. 16x16 16->768 2x2 s2 at batch 256
// takes these kernels 165 us, cuDNN 32 (H200).
bool RowsFillBoxes(const ConvGeometry& g) { return g.S == 1 && g.C >= 32; }

// How often the busiest bank is asked when a warp loads an element.
int Conflicts(int64_t step) {
  int most = 0, asked[32] = {};
  int64_t last[32];
  for (int64_t row = 0; row < 8; ++row) {
    for (int64_t i = 0; i < 4; ++i) {
      const int64_t word = row * step + i;
      int& n = asked[word % 32];
      if (n > 0 && last[word % 32] == word) continue;
      last[word % 32] = word;
      most = std::max(most, ++n);
    }
  }
  return most;
}

// Whether a tile's row band has a place in shared memory.
bool Fits(const ConvGeometry& g, int64_t tile) {
  return IsNear(InHalves(g), tile) && StemBytes(g, tile) <= kMostShared;
}

}  // namespace

ConvGeometry InHalves(const ConvGeometry& g) {
  ConvGeometry halves = g;
  halves.C = 2 * g.C;
  return halves;
}

int StemSteps(const ConvGeometry& g) {
  for (const int steps : kStemSteps) {
    if (g.taps() * g.C <= 8 * steps) return steps;
  }
  return 0;
}

int64_t StemBytes(const ConvGeometry& g, int64_t tile) {
  const ConvGeometry halves = InHalves(g);
  return 1024 + StemFilterBytes(StemSteps(g)) +
         kStemStages * FewChannelsShape(halves).StageBytes(halves, tile, false);
}

int StemApart(const ConvGeometry& g) {
  const int64_t step = g.stride.w * g.C;
  return Conflicts(2 * step) < Conflicts(step) ? 2 : 1;
}

bool IsStem(const ConvGeometry& given, bool dgrad) {
  constexpr int64_t kLeastTile = 64;
  if (dgrad && !given.stride.all(1)) return false;
  // Rows of no pixels have no band.
  if (given.input_pixels() * given.output_pixels() * given.w_size() == 0) {
    return false;
  }
  const ConvGeometry g = dgrad ? DgradAsFprop(given) : given;
  if (g.taps() * g.C > kStemLong) return g.C <= kStemMostChannels;
  return (g.P == 1 || g.W * g.C <= kStemRow) && Fits(g, kLeastTile);
}

std::optional<Plan> PlanStem(const ConvGeometry& given, bool dgrad,
                             int multiprocessors) {
  if (!IsStem(given, dgrad)) return std::nullopt;
  const ConvGeometry g = dgrad ? DgradAsFprop(given) : given;
  const ConvGeometry halves = InHalves(g);
  if (!FitsIn32Bits(halves) || g.taps() == 1 || g.K % 4 != 0 ||
      g.K < kFewestOutputs || RowsFillBoxes(g) || StemSteps(g) == 0) {
    return std::nullopt;
  }
  const int64_t shares = (g.K + 63) / 64;
  const int64_t at_once = std::max<int64_t>(1, multiprocessors / shares);
  const FewChannelsCosts costs = {StemSteps(g) * 40.0 + 300, 1 / 20.0, 1200};
  const int64_t tile = BestFewChannelsTile(
      halves, at_once, [&](int64_t) { return costs; },
      [&](int64_t pixels) { return Fits(g, pixels); });
  if (tile == 0) return std::nullopt;
  const int64_t tiles = g.N * ((g.P * g.Q + tile - 1) / tile);
  return Plan{static_cast<int>(tile), 64,
              static_cast<int>(std::min(tiles, at_once) * shares), 0,
              Path::kFewChannels};
}

}  // namespace jax_convbatch::hopper
