// SPDX-License-Identifier: Apache-2.0
// What the launches of norm_act_kernel.cuh share.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_NORM_ACT_NORM_ACT_LAUNCH_CUH_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_NORM_ACT_NORM_ACT_LAUNCH_CUH_

#include <algorithm>

#include "cuda/common/most_shared.h"
#include "cuda/sm90/arch/launch.cuh"
#include "cuda/sm90/kernels/norm_act/norm_act.h"
#include "cuda/sm90/kernels/norm_act/norm_act_kernel.cuh"
#include "cuda/sm90/problem/box_map.h"
#include "cuda/sm90/problem/tensor_map.h"

namespace jax_convbatch::hopper {

template <typename Config>
cudaError_t LaunchNormActKernel(const NormActProblem& problem, int blocks,
                                Stage stage, cudaStream_t stream) {
  const auto kernel = &NormActKernel<Config>;
  constexpr int kBytes = kNormActShared<Config>;
  static_assert(kBytes <= kMostShared);
  const cudaError_t raised = RaiseSharedMemory(kernel, kBytes);
  if (raised != cudaSuccess || stage == Stage::kPrepare) return raised;
  kernel<<<std::min(problem.tiles, blocks), kNormActThreads, kBytes, stream>>>(
      problem);
  return cudaGetLastError();
}

// The kernel of a plan's tiles; kGradient as in NormActConfig.
template <typename T, bool kGradient>
cudaError_t LaunchNormActTiles(const NormActProblem& problem,
                               const NormActPlan& plan, Stage stage,
                               cudaStream_t stream) {
  auto launch = [&](auto config) {
    return LaunchNormActKernel<decltype(config)>(problem, plan.blocks, stage,
                                                 stream);
  };
  switch (plan.tile_n) {
    case 64:
      return launch(NormActConfig<T, 64, 4, kGradient ? 6 : 8, kGradient>());
    case 96:
      return launch(NormActConfig<T, 96, 4, 5, kGradient>());
    case 128:
      return launch(NormActConfig<T, 128, kGradient ? 3 : 4, kGradient ? 4 : 5,
                                  kGradient>());
    case 160:
      return launch(NormActConfig<T, 160, kGradient ? 2 : 3, 4, kGradient>());
    default:
      return cudaErrorInvalidValue;
  }
}

template <bool kGradient>
cudaError_t LaunchNormAct(Type type, const NormActProblem& problem,
                          const NormActPlan& plan, Stage stage,
                          cudaStream_t stream) {
  const auto launch = type == Type::kBf16
                          ? &LaunchNormActTiles<__nv_bfloat16, kGradient>
                          : &LaunchNormActTiles<__half, kGradient>;
  return launch(problem, plan, stage, stream);
}

// The map of an array like y of `g`, by blocks of 64 pixels of tiles of n
// channels. False where the driver refuses.
inline bool EncodeBlocks(CUtensorMap* map, const ConvGeometry& g, Type type,
                         const NormActShape& s, int n, const void* data,
                         Copy copy) {
  const bool in_row = s.tile == NormActTile::kRow;
  const int cols = in_row ? 64 : 8, rows = in_row ? 1 : 8;
  return n % 64 != 0 ? EncodeHalfLines(map, type, data, {g.K, g.Q, g.P, g.N},
                                       {32, cols, rows, 1}, copy)
                     : EncodeTiled(map, type, data, {g.K, g.Q, g.P, g.N},
                                   {64, cols, rows, 1}, copy);
}

// All but the maps of weights and results, of fprop of `g`. False where the
// driver refuses.
inline bool MakeNormActProblem(const ConvGeometry& g, Type type,
                               const NormActPlan& plan, const NormActShape& s,
                               const void* x, NormActProblem* problem) {
  NormActProblem& p = *problem;
  if (!EncodeTiled(&p.input, type, x, {g.C, g.W, g.H, g.N},
                   {64, s.halo_cols, s.halo_rows, s.images})) {
    return false;
  }
  p.tile = s.tile;
  p.tile_cols = s.cols, p.tile_rows = s.rows, p.tile_images = s.images;
  p.n_tiles = static_cast<int>((g.K + plan.tile_n - 1) / plan.tile_n);
  p.tiles_w = s.tiles_w, p.tiles_h = s.tiles_h;
  p.tiles = s.tiles_n * s.tiles_h * s.tiles_w * p.n_tiles;
  p.n = int(g.N), p.h = int(g.H), p.w = int(g.W);
  p.c = int(g.C), p.k = int(g.K);
  p.p = int(g.P), p.q = int(g.Q);
  p.pad_h = int(g.pad.h), p.pad_w = int(g.pad.w);
  p.halo_cols = s.halo_cols, p.halo_rows = s.halo_rows;
  p.halo_pixels = s.halo_pixels();
  p.taps_h = int(g.R), p.taps_w = int(g.S);
  constexpr int kPixel = 128 >> 4;
  const int step_w = int(g.filter_dilation.w);
  const int step_h = int(g.filter_dilation.h) * s.halo_cols;
  p.tap_step = step_w * kPixel;
  p.row_step = (step_h - p.taps_w * step_w) * kPixel;
  const bool in_row = s.tile == NormActTile::kRow;
  p.eight_step = (in_row ? 8 : s.halo_cols) * kPixel;
  const int block = in_row                           ? 64
                    : s.tile == NormActTile::kImages ? s.halo_rows * s.halo_cols
                                                     : 8 * s.halo_cols;
  p.block_step = block * kPixel;
  p.channel_blocks = static_cast<int>((g.C + 63) / 64);
  return true;
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_NORM_ACT_NORM_ACT_LAUNCH_CUH_
