// SPDX-License-Identifier: Apache-2.0
// Launches of norm_act_kernel.cuh.
#include <algorithm>

#include "cuda/sm90/arch/launch.cuh"
#include "cuda/sm90/kernels/norm_act/norm_act.h"
#include "cuda/sm90/kernels/norm_act/norm_act_kernel.cuh"
#include "cuda/sm90/problem/box_map.h"
#include "cuda/sm90/problem/tensor_map.h"

namespace jax_convbatch::hopper {
namespace {

template <typename Config>
cudaError_t Launch(const NormActProblem& problem, int blocks, Stage stage,
                   cudaStream_t stream) {
  const auto kernel = &NormActKernel<Config>;
  constexpr int kBytes = kNormActShared<Config>;
  static_assert(kBytes <= 232448);
  const cudaError_t raised = RaiseSharedMemory(kernel, kBytes);
  if (raised != cudaSuccess || stage == Stage::kPrepare) return raised;
  kernel<<<std::min(problem.tiles, blocks), kNormActThreads, kBytes, stream>>>(
      problem);
  return cudaGetLastError();
}

template <typename T>
cudaError_t Dispatch(const NormActProblem& problem, const NormActPlan& plan,
                     Stage stage, cudaStream_t stream) {
  switch (plan.tile_n) {
    case 64:
      return Launch<NormActConfig<T, 64, 4, 8>>(problem, plan.blocks, stage,
                                                stream);
    case 128:
      return Launch<NormActConfig<T, 128, 4, 5>>(problem, plan.blocks, stage,
                                                 stream);
    case 160:
      return Launch<NormActConfig<T, 160, 3, 4>>(problem, plan.blocks, stage,
                                                 stream);
    default:
      return cudaErrorInvalidValue;
  }
}

bool EncodeOutput(CUtensorMap* map, const NormActCall& call,
                  const NormActShape& s, const void* data, Copy copy) {
  const ConvGeometry& g = call.g;
  const bool in_row = s.tile == NormActTile::kRow;
  const int cols = in_row ? 64 : 8, rows = in_row ? 1 : 8;
  return call.plan.tile_n % 64 != 0
             ? EncodeHalfLines(map, call.type, data, {g.K, g.Q, g.P, g.N},
                               {32, cols, rows, 1}, copy)
             : EncodeTiled(map, call.type, data, {g.K, g.Q, g.P, g.N},
                           {64, cols, rows, 1}, copy);
}

}  // namespace

cudaError_t NormActFprop(const NormActCall& call, Stage stage,
                         cudaStream_t stream) {
  const ConvGeometry& g = call.g;
  const NormActShape s = NormActShapeOf(g);
  NormActProblem problem{};
  if (!EncodeTiled(&problem.input, call.type, call.x, {g.C, g.W, g.H, g.N},
                   {64, s.halo_cols, s.halo_rows, s.images}) ||
      !EncodeTiled(&problem.weights, call.type, call.w, {g.K, g.C, g.taps()},
                   {64, 64, 1}) ||
      !EncodeOutput(&problem.output, call, s, call.y, Copy::kStore)) {
    return cudaErrorInvalidValue;
  }
  problem.has_residual = call.residual != nullptr;
  if (problem.has_residual &&
      !EncodeOutput(&problem.residual, call, s, call.residual, Copy::kLoad)) {
    return cudaErrorInvalidValue;
  }
  problem.scale = call.scale, problem.shift = call.shift;
  problem.factor_step = call.by_sample ? int(g.C) : 0;
  problem.bias = call.bias;
  problem.partials = call.partials;
  problem.activation = call.activation;
  problem.tile = s.tile;
  problem.tile_cols = s.cols, problem.tile_rows = s.rows;
  problem.tile_images = s.images;
  const int n = call.plan.tile_n;
  problem.n_tiles = static_cast<int>((g.K + n - 1) / n);
  problem.tiles_w = s.tiles_w, problem.tiles_h = s.tiles_h;
  problem.tiles = s.tiles_n * s.tiles_h * s.tiles_w * problem.n_tiles;
  problem.n = int(g.N), problem.h = int(g.H), problem.w = int(g.W);
  problem.c = int(g.C), problem.k = int(g.K);
  problem.p = int(g.P), problem.q = int(g.Q);
  problem.pad_h = int(g.pad.h), problem.pad_w = int(g.pad.w);
  problem.halo_cols = s.halo_cols, problem.halo_rows = s.halo_rows;
  problem.halo_pixels = s.halo_pixels();
  problem.taps_h = int(g.R), problem.taps_w = int(g.S);
  constexpr int kPixel = 128 >> 4;
  const int step_w = int(g.filter_dilation.w);
  const int step_h = int(g.filter_dilation.h) * s.halo_cols;
  problem.tap_step = step_w * kPixel;
  problem.row_step = (step_h - problem.taps_w * step_w) * kPixel;
  const bool in_row = s.tile == NormActTile::kRow;
  problem.eight_step = (in_row ? 8 : s.halo_cols) * kPixel;
  problem.block_step = (in_row ? 64
                        : s.tile == NormActTile::kImages
                            ? s.halo_rows * s.halo_cols
                            : 8 * s.halo_cols) *
                       kPixel;
  problem.channel_blocks = static_cast<int>((g.C + 63) / 64);
  return call.type == Type::kBf16
             ? Dispatch<__nv_bfloat16>(problem, call.plan, stage, stream)
             : Dispatch<__half>(problem, call.plan, stage, stream);
}

}  // namespace jax_convbatch::hopper
