// SPDX-License-Identifier: Apache-2.0
// What the host side of the few-channels kernels shares.
#pragma once

#include <algorithm>

#include "cuda/sm90/arch/launch.cuh"
#include "cuda/sm90/kernels/few_channels/few_channels_plan.h"
#include "cuda/sm90/kernels/few_channels/few_channels_problem.h"
#include "cuda/sm90/problem/tensor_map.h"

namespace jax_convbatch::hopper {

// Of the loads of rows of so many elements: the largest of 8, 4, 2 and 1 that
// divides them.
inline int LoadElements(int64_t row) {
  const int64_t all = row | 8;
  return static_cast<int>(all & -all);
}

inline FewChannelsProblem MakeFewChannelsProblem(const ConvCall& call,
                                                 bool wgrad) {
  const ConvGeometry& g = call.g;
  const FewChannelsShape shape(g);
  const int64_t tile = call.plan.tile_m;
  const int64_t pitch = shape.Pitch(g, tile);
  FewChannelsProblem problem{};
  problem.x = static_cast<const uint16_t*>(call.lhs);
  problem.H = static_cast<int>(g.H);
  problem.image_row = static_cast<int>(g.W * g.C);
  problem.vector = LoadElements(g.W * g.C);
  problem.layout = {static_cast<int>(shape.origin),
                    static_cast<int>(pitch),
                    static_cast<int>(shape.first),
                    static_cast<int>(shape.runs),
                    static_cast<int>(shape.length),
                    static_cast<int>(shape.lead),
                    FastDivmod<uint32_t>(shape.pairs),
                    FastDivmod<uint32_t>(shape.run_cols),
                    static_cast<int>(shape.step_h * pitch),
                    static_cast<int>(shape.run_col)};
  problem.copied_row =
      static_cast<int>(std::min(g.W * g.C, pitch + shape.origin));
  problem.Q = FastDivmod<uint32_t>(g.Q);
  problem.pixels = static_cast<int>(g.P * g.Q);
  problem.pad_h = static_cast<int>(g.pad.h);
  problem.stride_h = static_cast<int>(g.stride.h);
  problem.pixel_step = static_cast<int>(shape.step);
  problem.part_step = HasPartsOfRows(g) ? problem.pixel_step : 0;
  problem.K = static_cast<int>(g.K);
  problem.tile = static_cast<int>(tile);
  problem.rows = static_cast<int>(FewChannelsShape::Rows(g, tile));
  problem.rows_p = static_cast<int>(FewChannelsShape::RowsOfY(g, tile));
  const int64_t tiles_image = (g.P * g.Q + tile - 1) / tile;
  problem.tiles_image = FastDivmod<uint32_t>(tiles_image);
  problem.tiles = static_cast<int>(g.N * tiles_image);
  problem.stage_bytes = static_cast<int>(shape.StageBytes(g, tile, wgrad));
  return problem;
}

// y and dy. False where the driver refuses.
inline bool EncodeOutput(CUtensorMap* map, const ConvCall& call,
                         const void* data) {
  const ConvGeometry& g = call.g;
  return EncodeTiled(map, call.type, data, {g.K, g.P * g.Q, g.N}, {64, 64, 1});
}

}  // namespace jax_convbatch::hopper
