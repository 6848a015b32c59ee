// SPDX-License-Identifier: Apache-2.0
// What the launches of halo_kernel.cuh share.
#pragma once

#include <algorithm>

#include "cuda/common/most_shared.h"
#include "cuda/sm90/arch/launch.cuh"
#include "cuda/sm90/kernels/halo/halo_kernel.cuh"
#include "cuda/sm90/problem/box_map.h"
#include "cuda/sm90/problem/tensor_map.h"

namespace jax_convbatch::hopper {

template <typename Config>
cudaError_t LaunchHaloKernel(const typename Config::Problem& problem,
                             int blocks, Stage stage, cudaStream_t stream) {
  const auto kernel = &HaloKernel<Config>;
  constexpr int kBytes = kHaloShared<Config>;
  static_assert(kBytes <= kMostShared);
  const cudaError_t raised = RaiseSharedMemory(kernel, kBytes);
  if (raised != cudaSuccess || stage == Stage::kPrepare) return raised;
  kernel<<<std::min(problem.tiles, blocks), Config::kThreads, kBytes, stream>>>(
      problem);
  return cudaGetLastError();
}

// The map of an array like y of `g`, by blocks of 64 pixels of tiles of n
// channels. False where the driver refuses.
inline bool EncodeHaloBlocks(CUtensorMap* map, const ConvGeometry& g, Type type,
                             const HaloShape& s, int n, const void* data,
                             Copy copy) {
  const bool in_row = s.tile == HaloTile::kRow;
  const int cols = in_row ? 64 : 8, rows = in_row ? 1 : 8;
  if (type == Type::kTf32) {
    return EncodeTiled(map, type, data, {g.K, g.Q, g.P, g.N * g.O},
                       {32, cols, rows, 1}, copy);
  }
  return n % 64 != 0
             ? EncodeHalfLines(map, type, data, {g.K, g.Q, g.P, g.N * g.O},
                               {32, cols, rows, 1}, copy)
             : EncodeTiled(map, type, data, {g.K, g.Q, g.P, g.N * g.O},
                           {64, cols, rows, 1}, copy);
}

// All but the maps of results, by tiles of n channels; `g` is fprop's geometry,
// or that of a dgrad as fprop of dy. What is summed lies contiguous in the
// filter of dgrad, and of f32 always. False where the driver refuses.
inline bool MakeHaloProblem(const ConvGeometry& g, Type type, bool dgrad, int n,
                            const HaloShape& s, const void* x, const void* w,
                            HaloProblem* problem) {
  HaloProblem& p = *problem;
  const int block = 128 / ElementBytes(type);
  const bool weights =
      dgrad || type == Type::kTf32
          ? EncodeTiled(&p.weights, type, w, {g.C, g.K, g.taps()},
                        {block, n, 1})
          : EncodeTiled(&p.weights, type, w, {g.K, g.C, g.taps()}, {64, 64, 1});
  if (!weights || !EncodeTiled(&p.input, type, x, {g.C, g.W, g.H, g.D, g.N},
                               {block, s.halo_cols, s.halo_rows, 1, 1})) {
    return false;
  }
  p.activation = Activation::kIdentity;
  p.tile = s.tile;
  p.unit_cols = s.unit_cols, p.unit_rows = s.unit_rows;
  p.n_tiles = static_cast<int>((g.K + n - 1) / n);
  p.units_w = s.units_w, p.units_h = s.units_h;
  p.tiles = s.tiles * p.n_tiles;
  p.n = int(g.N), p.d = int(g.D), p.h = int(g.H), p.w = int(g.W);
  p.c = int(g.C), p.k = int(g.K);
  p.p = int(g.P), p.q = int(g.Q), p.slices = int(g.N * g.O);
  p.depth = static_cast<int>(g.O);
  p.pad_d = int(g.pad.d), p.pad_h = int(g.pad.h), p.pad_w = int(g.pad.w);
  p.dilation_d = int(g.filter_dilation.d);
  p.halo_cols = s.halo_cols, p.halo_rows = s.halo_rows;
  p.halo_pixels = s.halo_pixels(), p.halos = s.halos();
  p.taps_d = int(g.T), p.taps_h = int(g.R), p.taps_w = int(g.S);
  p.first_tap = dgrad ? static_cast<int>(g.taps()) - 1 : 0;
  p.next_tap = dgrad ? -1 : 1;
  constexpr int kPixel = 128 >> 4;
  const int step_w = int(g.filter_dilation.w);
  const int step_h = int(g.filter_dilation.h) * s.halo_cols;
  p.tap_step = step_w * kPixel;
  p.row_step = (step_h - p.taps_w * step_w) * kPixel;
  const bool in_row = s.tile == HaloTile::kRow;
  p.eight_step = (in_row ? 8 : s.halo_cols) * kPixel;
  const int pixels = in_row        ? 64
                     : s.squares() ? s.halo_rows * s.halo_cols
                                   : 8 * s.halo_cols;
  p.block_step = pixels * kPixel;
  p.channel_blocks = static_cast<int>((g.C + block - 1) / block);
  p.last_is_half = g.C - (p.channel_blocks - 1) * block <= block / 2;
  return true;
}

}  // namespace jax_convbatch::hopper
