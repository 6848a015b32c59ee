// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "cuda/sm80/scalars/wgrad.h"

namespace jax_convbatch::direct {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Outputs of a thread, so that few are of none.
int Outputs(int64_t channels, int most) {
  if (channels <= most) return static_cast<int>(channels);
  int best = most;
  for (int outputs = most - 1; outputs >= 4; --outputs) {
    const auto padded = [&](int n) { return CeilDiv(channels, n) * n; };
    if (padded(outputs) < padded(best)) best = outputs;
  }
  return best;
}

// Rows of taps that share what they read, if few are of none.
int Window(const ConvGeometry& g) {
  if (g.stride.h != g.filter_dilation.h) return 1;
  const int64_t threes = CeilDiv(g.R, 3) * 3, fives = CeilDiv(g.R, 5) * 5;
  const int window = fives <= threes ? 5 : 3;
  return std::min(threes, fives) * 3 > g.R * 4 ? 1 : window;
}

}  // namespace

ScalarRowShape::ScalarRowShape(int64_t channels, int64_t chunk, int64_t width,
                               int64_t pixels) {
  pixel = static_cast<int>(chunk | 1);
  const bool whole = pixel == channels;
  const int64_t floats = width * channels;
  vector = !whole ? 1 : floats % 4 == 0 ? 4 : floats % 2 == 0 ? 2 : 1;
  row = CeilDiv(pixels * pixel + vector - 1, 4) * 4;
}

// Among warps and blocks, for so many rows of taps. Where one block has not
// enough warps, each has a range of channels, whose floats come one by one; or
// several bring all of x, if that is fewer copies or a range would not do.
void ScalarWgradShape::Share() {
  constexpr int64_t kMany = 16;  // all of which would leave tiles small
  const auto count = [&](int64_t channels) {
    return CeilDiv(windows() * g.S * channels, columns) * parts_k;
  };
  const int64_t blocks = CeilDiv(count(g.C), kScalarWgradWarps);
  const int vector = ScalarRowShape(g.C, g.C, g.W, 1).vector;
  chunk = g.C;
  if ((g.C >= kMany || blocks > vector) && count(1) <= kScalarWgradWarps) {
    for (int64_t n = 2; count(chunk) > kScalarWgradWarps; ++n) {
      chunk = CeilDiv(g.C, n);
    }
  }
  parts = count(chunk);
  part_groups = CeilDiv(parts, kScalarWgradWarps);
  block_parts = static_cast<int>(CeilDiv(parts, part_groups));
  slices = kScalarWgradWarps / block_parts;
}

// About so many pixels: rows of 64, or more if there are no other rows.
void ScalarWgradShape::Tile(int64_t pixels) {
  const int64_t most_cols =
      std::max(std::min<int64_t>(64, pixels), pixels / g.P);
  across = CeilDiv(g.Q, most_cols);
  tile_cols = CeilDiv(g.Q, across);
  down = CeilDiv(g.P, std::max<int64_t>(1, pixels / tile_cols));
  tile_rows = CeilDiv(g.P, down);
  // The run that leaves the fewest threads without one. To fill a window takes
  // a part of the time of its rows.
  double least = 0;
  for (int64_t rows = tile_rows; rows >= 1; --rows) {
    const int64_t runs = CeilDiv(tile_rows, rows) * tile_cols;
    const double time = static_cast<double>(CeilDiv(runs, slices * 32)) *
                        (static_cast<double>(rows) + 1 + 0.3 * (window - 1));
    if (rows == tile_rows || time < least) least = time, run = rows;
  }
  x = ScalarRowShape(g.C, chunk, g.W, x_cols());
  dy = ScalarRowShape(g.K, g.K, g.Q, tile_cols);
}

ScalarWgradShape::ScalarWgradShape(const ConvGeometry& given,
                                   int multiprocessors)
    : g(given) {
  constexpr int64_t kMostPixels = 1024, kFewestPixels = 32, kTilesEach = 2;
  const int64_t at_once = int64_t{kScalarWgradBlocks} * multiprocessors;
  window = Window(g);
  outputs = Outputs(g.K, window == 5 ? 7 : 8);
  columns = ScalarWgradColumns(window, outputs);
  parts_k = CeilDiv(g.K, outputs);
  // Rows of taps far apart are of other blocks if they do not fit together.
  for (filter_rows = g.R;; filter_rows = CeilDiv(filter_rows, 2)) {
    Share();
    for (int64_t pixels = kMostPixels; pixels >= kFewestPixels; pixels /= 2) {
      Tile(pixels);
      if (shared_bytes() > kScalarWgradMostBytes) continue;
      // Smaller tiles where they would leave SMs without some.
      if (tiles() * groups() >= kTilesEach * at_once || pixels <= 256) break;
    }
    if (shared_bytes() <= kScalarWgradMostBytes || filter_rows == 1) break;
  }
  workers = std::clamp<int64_t>(at_once / groups(), 1, tiles());
}

std::optional<Plan> PlanScalarWgrad(const ConvGeometry& g,
                                    int multiprocessors) {
  constexpr int64_t kMostTaps = 128;
  constexpr double kLimit = int64_t{1} << 30;
  // Floats are counted in 32 bits along a row.
  const double reach = 1.0 * g.W + std::abs(1.0 * g.pad.w) +
                       1.0 * g.Q * g.stride.w + 1.0 * g.S * g.filter_dilation.w;
  if (g.taps() > kMostTaps || reach * g.C >= kLimit) return std::nullopt;
  const ScalarWgradShape shape(g, multiprocessors);
  if (shape.shared_bytes() > kScalarWgradMostBytes || shape.tiles() >= kLimit) {
    return std::nullopt;
  }
  Plan plan{};
  plan.tile_h = static_cast<int>(shape.tile_rows);
  plan.tile_w = static_cast<int>(shape.tile_cols);
  plan.tile_channels = shape.outputs;
  plan.channel_tiles = static_cast<int>(shape.groups());
  plan.workers = static_cast<int>(shape.workers);
  plan.workspace = shape.workers * g.w_size() * 4;
  plan.preferred = true;
  plan.scalars = multiprocessors;
  return plan;
}

}  // namespace jax_convbatch::direct
