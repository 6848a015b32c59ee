// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "cuda/sm90/arch/launch.cuh"
#include "cuda/sm90/kernels/fused_backward/single_wave_backward.cuh"
#include "cuda/sm90/kernels/fused_backward/single_wave_backward.h"
#include "cuda/sm90/kernels/fused_backward/strided_maps.h"
#include "cuda/sm90/problem/box_map.h"
#include "cuda/sm90/problem/tensor_map.h"

namespace jax_convbatch::hopper {
namespace {

template <typename Config>
cudaError_t Launch(const FusedBackwardCall& call,
                   const SingleWaveBackwardTiling& tiling, Stage stage,
                   cudaStream_t stream) {
  const auto kernel = &SingleWaveBackwardKernel<Config>;
  if (stage == Stage::kPrepare) {
    return RaiseSharedMemory(kernel, Config::kSharedBytes);
  }
  const ConvGeometry& g = call.g;
  const int64_t pixels = g.N * g.output_pixels();
  SingleWaveBackwardProblem problem{};
  problem.db = call.db;
  problem.K = static_cast<int>(g.K);
  problem.pixels = static_cast<int>(pixels);
  problem.steps = static_cast<int>((pixels + 63) / 64);
  const int splits = tiling.splits;
  problem.splits = splits;
  problem.bitmask_of_dx = static_cast<const uint8_t*>(call.bitmask);
  problem.dx_columns = static_cast<int>(g.C / Config::kDxN);
  constexpr int kPixels = Config::kGroups * 64;
  problem.dx_tiles =
      static_cast<int>((pixels + kPixels - 1) / kPixels) * problem.dx_columns;
  const int dx_blocks = (problem.dx_tiles + splits - 1) / splits * splits;
  problem.dw_rows = static_cast<int>(g.K / kPixels);
  problem.stores_dz = call.dz != nullptr;
  problem.walk = StridedPixelsOf(g);
  const bool encoded =
      EncodeTiled(&problem.dy, call.type, call.dy, {g.K, pixels}, {64, 64}) &&
      EncodeBoxes(&problem.bitmask, call.type, call.bitmask, {g.K / 16, pixels},
                  {8, 64}) &&
      EncodeTiled(&problem.w, call.type, call.w, {g.K, g.C},
                  {64, Config::kDxN}) &&
      EncodeTiled(&problem.dw, call.type, call.dw, {g.K, g.C},
                  {64, Config::kDwN / splits}, Copy::kStore) &&
      (!problem.stores_dz ||
       EncodeTiled(&problem.dz, call.type, call.dz, {g.K, pixels}, {64, 64},
                   Copy::kStore)) &&
      EncodeX(call, &problem.x) && EncodeDx(call, problem.dx);
  if (!encoded) return cudaErrorInvalidValue;
  const int dw_blocks =
      static_cast<int>(g.C / Config::kDwN) * problem.dw_rows * splits;
  (tiling.dw_first ? problem.dx_begin : problem.dw_begin) =
      tiling.dw_first ? dw_blocks : dx_blocks;
  return LaunchKernel(kernel,
                      {dx_blocks + dw_blocks, Config::kThreads, Start::kInOrder,
                       Config::kSharedBytes, splits},
                      stream, problem);
}

// Stages fill what shared memory the block may have.
template <typename T>
cudaError_t LaunchTiling(const FusedBackwardCall& call,
                         const SingleWaveBackwardTiling& tiling, Stage stage,
                         cudaStream_t stream) {
  using Strided = SingleWaveBackwardConfig<T, 2, 128, 4, 1, true>;
  using NarrowStrided = SingleWaveBackwardConfig<T, 2, 64, 4, 1, true>;
  using Dense = SingleWaveBackwardConfig<T, 1, 128, 3, 2, false>;
  using NarrowDense = SingleWaveBackwardConfig<T, 1, 64, 7, 1, false>;
  const bool narrow = tiling.dx_channels == 64;
  if (tiling.groups == 2) {
    return narrow ? Launch<NarrowStrided>(call, tiling, stage, stream)
                  : Launch<Strided>(call, tiling, stage, stream);
  }
  return narrow ? Launch<NarrowDense>(call, tiling, stage, stream)
                : Launch<Dense>(call, tiling, stage, stream);
}

}  // namespace

cudaError_t SingleWaveBackward(const FusedBackwardCall& call,
                               int multiprocessors, Stage stage,
                               cudaStream_t stream) {
  if (!HasSingleWaveBackward(call.g, call.type)) return cudaErrorInvalidValue;
  const SingleWaveBackwardTiling tiling =
      SingleWaveBackwardTilingOf(call.g, multiprocessors);
  return call.type == Type::kBf16
             ? LaunchTiling<__nv_bfloat16>(call, tiling, stage, stream)
             : LaunchTiling<__half>(call, tiling, stage, stream);
}

}  // namespace jax_convbatch::hopper
