// SPDX-License-Identifier: Apache-2.0
// What the host tells the kernels of wgrad_short_kernel.cuh.
#pragma once

#include "cuda/sm90/kernels/wgrad/wgrad_launch.h"
#include "cuda/sm90/kernels/wgrad/wgrad_short_problem.h"
#include "cuda/sm90/kernels/wgrad/wgrad_short_tiling.h"
#include "cuda/sm90/problem/box_map.h"

namespace jax_convbatch::hopper {

// After tiles and splits are known.
inline void SetShares(int tile_m, WgradShortProblem* problem) {
  problem->by_cluster = FastDivmod<uint32_t>(problem->cluster);
  problem->least_steps = problem->steps / problem->splits;
  problem->longer = problem->steps % problem->splits;
  problem->rest_split = problem->has_rest ? problem->rest_class : -1;
  problem->minor_tiles =
      problem->m_minor ? problem->tiles / problem->n_tiles : problem->n_tiles;
  problem->tile_rows = tile_m;
}

// Both return false where the driver refuses.
inline bool MakeShortProblem(const ConvCall& call, WgradShortProblem* problem) {
  const bool encoded = MakeWgradProblem(call, problem);
  SetShares(call.plan.tile_m, problem);
  return encoded;
}

// The tiles of 576x64 that HaloRounds leaves over, each tap's 64x64 of them a
// tile. False where the driver refuses.
inline bool MakeLeftProblem(const ConvCall& call, const HaloRounds& rounds,
                            WgradShortProblem* problem) {
  const ConvGeometry& g = call.g;
  const auto left = static_cast<int>(rounds.left);
  const int64_t c = g.C - 64, k = g.K - left * 64;
  auto behind = [](const void* from, int64_t elements) {
    return static_cast<const uint16_t*>(from) + elements;
  };
  ConvCall of_last = call;
  of_last.lhs = behind(call.lhs, c);
  of_last.rhs = behind(call.rhs, k);
  of_last.result = static_cast<uint16_t*>(call.result) + c * g.K + k;
  of_last.plan.tile_m = of_last.plan.tile_n = 64;
  of_last.plan.cluster = rounds.splits();
  if (!MakeWgradProblem(of_last, problem)) return false;
  problem->channel_blocks = 1;
  problem->by_channel_blocks = FastDivmod<uint32_t>(1);
  problem->n_tiles = left;
  problem->tiles = static_cast<int>(g.taps()) * left;
  problem->blocks = problem->tiles * rounds.splits();
  problem->m_minor = true;
  SetSplits(problem, /*may_do_whole=*/false);
  SetShares(static_cast<int>(g.C), problem);
  return true;
}

inline bool MakeRowProblem(const ConvCall& call, const WgradShortTiling& tiling,
                           WgradRowProblem* problem) {
  const ConvGeometry& g = call.g;
  static_cast<WgradTiles&>(*problem) =
      TilesOf(call, tiling.channel_blocks, tiling.n_tiles, tiling.tiles(),
              tiling.steps);
  SetSplits(problem, /*may_do_whole=*/false);
  SetShares(call.plan.tile_m, problem);
  problem->by_rows = FastDivmod<uint32_t>(g.P);
  problem->by_cols = FastDivmod<uint32_t>(g.Q / kTapRowStrip);
  problem->height = static_cast<int>(g.H);
  problem->base_h = static_cast<int>(-g.pad.h);
  problem->base_w = static_cast<int>(-g.pad.w);
  return EncodeStridedHalfLines(
             &problem->x, call.type, call.lhs, {g.C, g.N, g.W, g.H},
             {g.H * g.W * g.C, g.C, g.W * g.C},
             {tiling.channels, kTapRowImages, kTapRowStrip + 2, 1}) &&
         EncodeStrided(&problem->dy, call.type, call.rhs, {g.K, g.N, g.Q, g.P},
                       {g.P * g.Q * g.K, g.K, g.Q * g.K},
                       {64, kTapRowImages, kTapRowStrip, 1});
}

}  // namespace jax_convbatch::hopper
