// SPDX-License-Identifier: Apache-2.0
// How wgrad_short_kernel.cuh cuts wgrad's product into tiles, and which plans
// it runs. Host only.
#pragma once

#include <algorithm>
#include <cstdint>

#include "conv_geometry.h"
#include "cuda/common/most_shared.h"
#include "cuda/sm90/problem/conv.h"
#include "cuda/sm90/problem/subproblems.h"

namespace jax_convbatch::hopper {

// Tiles that are a row of three taps by 32 channels, whose steps are so many
// pixels of a row of so many images.
inline constexpr int kTapRowM = 3 * 32;
inline constexpr int kTapRowStrip = 14, kTapRowImages = 8;

// What a block's barriers take of shared memory, behind its stages, and more:
// compute-sanitizer takes an operand whose taps share pixels for as long as if
// they did not, and would find its end outside.
inline constexpr int kShortBarrierBytes = 1024;

// Those that WgradShort has kernels for, and their stages.
struct WgradShortTile {
  int m, n, stages;

  constexpr int step_bytes() const {
    if (m != kTapRowM) return (m + n) * 128;
    return kTapRowImages * (kTapRowStrip * 128 + (kTapRowStrip + 2) * 64);
  }
  constexpr int shared_bytes(int cluster) const {
    const int parts = m * n / 256;
    return stages * step_bytes() + kShortBarrierBytes +
           (cluster > 1 ? cluster * ((parts + cluster - 1) / cluster) * 1024
                        : 0);
  }
};
inline constexpr WgradShortTile kWgradShortTiles[] = {
    {64, 64, 8}, {kTapRowM, 64, 6}, {128, 64, 8}, {128, 128, 4}, {192, 128, 4}};

// Of no stages where there is none.
constexpr WgradShortTile WgradShortTileOf(int m, int n) {
  for (const auto& tile : kWgradShortTiles) {
    if (tile.m == m && tile.n == n) return tile;
  }
  return {};
}

struct WgradShortTiling {
  int channels;  // of a box of x
  int64_t channel_blocks, m_tiles, n_tiles, steps;

  WgradShortTiling(const ConvGeometry& g, int tile_m, int tile_n)
      : channels(tile_m == kTapRowM ? 32 : 64),
        channel_blocks(g.C / channels),
        m_tiles(g.taps() * g.C / tile_m),
        n_tiles(g.K / tile_n),
        steps(tile_m == kTapRowM ? (g.N + kTapRowImages - 1) / kTapRowImages *
                                       (g.Q / kTapRowStrip) * g.P
                                 : (g.N * g.P * g.Q + 63) / 64) {}

  // Whether tiles hold whole boxes alone, and boxes are what they should be.
  static bool Covers(const ConvGeometry& g, int tile_m, int tile_n) {
    const int channels = tile_m == kTapRowM ? 32 : 64;
    if (g.taps() * g.C % tile_m != 0 || g.K % tile_n != 0 ||
        g.C % channels != 0) {
      return false;
    }
    return tile_m != kTapRowM ||
           (g.T == 1 && g.R == 3 && g.S == 3 && g.filter_dilation.all(1) &&
            g.stride.all(1) && g.Q % kTapRowStrip == 0);
  }

  int64_t tiles() const { return m_tiles * n_tiles; }
};

// Whether the kernels for few steps run a plan of wgrad.
inline bool IsShort(const ConvGeometry& g, Type type, const Plan& plan) {
  constexpr int64_t kFew = 40;          // steps of a block
  constexpr int64_t kGridMost = 65535;  // blocks, but in the first dimension
  if (type == Type::kTf32 || g.groups > 1 || Is3d(g) ||
      plan.pair != Pair::kNone ||
      WgradShortTileOf(plan.tile_m, plan.tile_n).stages == 0 ||
      !WgradShortTiling::Covers(g, plan.tile_m, plan.tile_n)) {
    return false;
  }
  const WgradShortTiling tiling(g, plan.tile_m, plan.tile_n);
  if (plan.blocks % tiling.tiles() != 0) return false;
  const int64_t splits = plan.blocks / tiling.tiles();
  return std::max(tiling.m_tiles, tiling.n_tiles) <= kGridMost &&
         splits <= tiling.steps && tiling.steps <= kFew * splits &&
         splits % plan.cluster == 0 && (splits == 1 || plan.cluster > 1);
}

}  // namespace jax_convbatch::hopper
