// SPDX-License-Identifier: Apache-2.0
// What the host tells a wgrad kernel.
#pragma once

#include <numeric>

#include "cuda/sm90/problem/conv.h"
#include "cuda/sm90/problem/subproblems.h"
#include "cuda/sm90/problem/wgrad_problem.h"
#include "cuda/sm90/problem/wgrad_tiling.h"

namespace jax_convbatch::hopper {

// What the kernels of both tilings are told of dw.
inline WgradTiles TilesOf(const ConvCall& call, int64_t channel_blocks,
                          int64_t n_tiles, int64_t count, int64_t steps) {
  const ConvGeometry& g = call.g;
  WgradTiles tiles{};
  tiles.dw = call.result;
  tiles.partials = static_cast<float*>(call.workspace);
  tiles.C = static_cast<int>(g.group_C());
  tiles.K = static_cast<int>(g.K);
  tiles.taps = static_cast<int>(g.taps());
  tiles.filter_width = static_cast<int>(g.S);
  tiles.channel_blocks = static_cast<int>(channel_blocks);
  tiles.n_tiles = static_cast<int>(n_tiles);
  tiles.tiles = static_cast<int>(count);
  tiles.steps = static_cast<int>(steps);
  tiles.blocks = call.plan.blocks;
  tiles.classes = tiles.steps;
  tiles.paired = call.plan.pair != Pair::kNone;
  tiles.shares_x = call.plan.pair == Pair::kX;
  tiles.rounds = 1;
  tiles.by_splits = FastDivmod<uint32_t>(1);
  // Pairs count on the order that they are in.
  const WgradUnits units(g, call.type);
  const int64_t m_tiles = count / n_tiles / units.count;
  tiles.m_minor = !tiles.paired && m_tiles > n_tiles;
  tiles.by_minor_tiles =
      FastDivmod<uint32_t>(tiles.m_minor ? m_tiles : n_tiles);
  tiles.by_channel_blocks = FastDivmod<uint32_t>(channel_blocks);
  tiles.by_filter_width = FastDivmod<uint32_t>(g.S);
  tiles.cluster = call.plan.cluster;
  tiles.group_inputs = static_cast<int>(units.inputs);
  tiles.group_outputs = static_cast<int>(units.outputs);
  tiles.group_blocks = (tiles.group_inputs + 63) / 64;
  tiles.group_tiles = static_cast<int>(count / units.count);
  return tiles;
}

inline void SetSplits(WgradTiles* tiles, bool may_do_whole) {
  const Sharing sharing =
      Sharing::Of(tiles->tiles, tiles->blocks, tiles->steps, may_do_whole);
  tiles->first_shared = static_cast<int>(sharing.whole);
  tiles->whole_each = tiles->first_shared / tiles->blocks;
  tiles->splits = static_cast<int>(sharing.splits);
  if (tiles->splits > 0) tiles->by_splits = FastDivmod<uint32_t>(tiles->splits);
}

// The fewest classes that can be cut evenly.
inline void SetClasses(WgradTiles* tiles) {
  const int classes =
      tiles->splits > 0 ? tiles->splits
                        : tiles->blocks / std::gcd(tiles->blocks, tiles->tiles);
  if (classes > tiles->steps) return;
  tiles->classes = classes;
  tiles->rounds = tiles->steps / classes;
}

// But for the maps, and how x and dy lie in shared memory.
inline HaloProblem HaloProblemOf(const ConvCall& call,
                                 const HaloTiling& tiling) {
  const ConvGeometry& g = call.g;
  HaloProblem problem{};
  static_cast<WgradTiles&>(problem) =
      TilesOf(call, tiling.channel_blocks, tiling.n_tiles, tiling.tiles(),
              tiling.steps);
  SetSplits(&problem, /*may_do_whole=*/false);
  problem.images = tiling.images;
  problem.strip = tiling.strip;
  problem.strips = static_cast<int>(tiling.strips);
  problem.rows = static_cast<int>(g.P);
  problem.height = static_cast<int>(g.H);
  problem.pad_h = static_cast<int>(g.pad.h);
  problem.pad_w = static_cast<int>(g.pad.w);
  problem.dilation = static_cast<int>(g.filter_dilation.h);
  problem.slice_groups = static_cast<int>(tiling.slice_groups(g));
  problem.depth = static_cast<int>(g.D);
  problem.pad_d = static_cast<int>(g.pad.d);
  return problem;
}

// False where the driver refuses. `copy`: kStore copies f32 as it is.
inline bool MakeWgradProblem(const ConvCall& call, Copy copy,
                             WgradProblem* problem) {
  const ConvGeometry& g = call.g;
  const WgradTiling tiling(g, call.type, call.plan.tile_m, call.plan.tile_n);
  const bool tap_rows =
      call.type == Type::kTf32 && call.plan.tile_m == kTapRowTile;
  const SubproblemAxes sub = FpropSubproblem(g);
  const SubproblemAxes walk = tap_rows ? WithReach(sub) : sub;
  const int block = static_cast<int>(tiling.block);
  static_cast<WgradTiles&>(*problem) =
      TilesOf(call, tiling.channel_blocks, tiling.n_tiles, tiling.tiles(),
              tiling.steps);
  // f32 has its own order of partials.
  if (call.type != Type::kTf32) {
    SetSplits(problem, MayDoWhole(call.plan.tile_m, call.plan.tile_n));
    SetClasses(problem);
  }
  problem->rows = static_cast<int>(g.P);
  problem->cols = static_cast<int>(walk.w.count);
  problem->by_rows = FastDivmod<uint32_t>(problem->rows);
  problem->by_cols = FastDivmod<uint32_t>(problem->cols);
  problem->base_h = static_cast<int>(walk.h.input);
  problem->base_w = static_cast<int>(walk.w.input);
  problem->step_h = walk.h.input_step;
  problem->step_w = walk.w.input_step;
  problem->dilation_h = walk.h.taps.offset_step;
  problem->dilation_w = walk.w.taps.offset_step;
  problem->volumes = Is3d(g);
  problem->by_slices = FastDivmod<uint32_t>(g.O);
  problem->by_slice_rows = FastDivmod<uint32_t>(g.R);
  problem->base_d = static_cast<int>(walk.d.input);
  problem->step_d = walk.d.input_step;
  problem->dilation_d = walk.d.taps.offset_step;
  auto encode_x = [&](CUtensorMap* x, int pixels) {
    const Activations in = InputOf(g);
    return Is3d(g) ? Encode3dIm2col(x, call.type, call.lhs,
                                    InputWalk3d(in, walk, pixels), copy)
                   : EncodeIm2col(x, call.type, call.lhs,
                                  InputWalk(in, walk, pixels), copy);
  };
  if (tap_rows) {
    const Activations out = OutputOf(g);
    return encode_x(&problem->x, block + kTapReach) &&
           (Is3d(g) ? Encode3dIm2col(&problem->dy, call.type, call.rhs,
                                     OutputWalk3d(out, walk, block), copy)
                    : EncodeIm2col(&problem->dy, call.type, call.rhs,
                                   OutputWalk(out, walk, block), copy));
  }
  const int64_t pixels = g.N * g.output_pixels();
  auto encode = [&](CUtensorMap* x, CUtensorMap* dy, int box) {
    return encode_x(x, box) && EncodeTiled(dy, call.type, call.rhs,
                                           {g.K, pixels}, {block, box}, copy);
  };
  // In tiles of one warpgroup the code for it takes more than it saves.
  if (call.type != Type::kTf32 && call.plan.tile_m * call.plan.tile_n > 4096) {
    const int64_t rest = pixels % block;
    problem->has_rest = rest > 0 && rest <= kRestPixels;
    problem->rest_class = (problem->steps - 1) % problem->classes;
  }
  return encode(&problem->x, &problem->dy, block) &&
         (!problem->has_rest ||
          encode(&problem->x_rest, &problem->dy_rest, kRestPixels));
}

inline bool MakeWgradProblem(const ConvCall& call, WgradProblem* problem) {
  return MakeWgradProblem(call, Copy::kLoad, problem);
}

}  // namespace jax_convbatch::hopper
