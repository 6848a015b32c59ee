// SPDX-License-Identifier: Apache-2.0
// Builds a RowBandProblem and launches the kernel.
#pragma once

#include <algorithm>

#include "cuda/common/most_shared.h"
#include "cuda/sm90/arch/launch.cuh"
#include "cuda/sm90/kernels/narrow_groups/group_tf32_plan.h"
#include "cuda/sm90/kernels/row_band/row_band_kernel.cuh"
#include "cuda/sm90/kernels/row_band/row_band_plan.h"
#include "cuda/sm90/problem/box_map.h"
#include "cuda/sm90/problem/tensor_map.h"

namespace jax_convbatch::hopper {

// Where in a stage the pixels of tap r, s of its first output begin, in 16
// bytes. low: of the pixels that an axis reads, in steps.
inline int RowBandTapAt(const RowBandTiling& tiling, const SubproblemAxis& h,
                        int low_h, int r, const SubproblemAxis& w, int low_w,
                        int s) {
  auto pixel = [&](const SubproblemAxis& axis, int low, int i) {
    return static_cast<int>(axis.input) + i * axis.taps.offset_step -
           low * tiling.step;
  };
  const int y = pixel(h, low_h, r), x = pixel(w, low_w, s);
  const int of_class = y % tiling.step * tiling.step + x % tiling.step;
  return (of_class * tiling.class_bytes +
          (y / tiling.step * tiling.width + x / tiling.step) * 128) >>
         4;
}

// A map for each residue class. False where the driver refuses.
inline bool EncodeRowBands(const ConvCall& call, const Activations& in,
                           const RowBandTiling& tiling, CUtensorMap* maps) {
  const int step = tiling.step;
  for (int i = 0; i < step * step; ++i) {
    const int h = i / step, w = i % step;
    const char* first = static_cast<const char*>(call.lhs) +
                        (h * in.w + w) * in.c * ElementBytes(call.type);
    if (!EncodeStrided(&maps[i], call.type, first,
                       {in.c, (in.w - w + step - 1) / step,
                        (in.h - h + step - 1) / step, in.n},
                       {in.c * step, in.w * in.c * step, in.h * in.w * in.c},
                       {64, tiling.width, tiling.box_rows, 1})) {
      return false;
    }
  }
  return true;
}

// False where the kernel cannot run the sub-problem or the driver refuses.
inline bool MakeRowBandProblem(const ConvCall& call, const Activations& in,
                               const Activations& out,
                               const SubproblemAxes& sub,
                               RowBandProblem* problem) {
  const ConvGeometry& g = call.g;
  const auto tiling =
      g.groups > 1
          ? TileGroupRowBand(g, call.type, in, out, sub, call.plan.tile_m)
          : TileRowBand(g, call.type, in, out, sub, call.plan.tile_m);
  if (!tiling) return false;
  const int units =
      static_cast<int>(g.groups > 1 ? GroupUnits(g) : (out.c + 63) / 64);
  const int blocks = call.plan.blocks / units;  // that share tiles
  if (blocks == 0) return false;
  problem->units = units;
  problem->tiling = *tiling;
  problem->taps_h = sub.h.taps;
  problem->taps_w = sub.w.taps;
  problem->filter_width = static_cast<int>(g.S);
  const GroupReach h = ReachOf({sub}, &SubproblemAxes::h);
  const GroupReach w = ReachOf({sub}, &SubproblemAxes::w);
  problem->input_h = h.low;
  problem->input_w = w.low;
  const int placed = g.groups > 1 ? sub.h.taps.count * sub.w.taps.count : 0;
  for (int i = 0; i < placed; ++i) {
    problem->tap_at[i] =
        RowBandTapAt(*tiling, sub.h, h.low, i / sub.w.taps.count, sub.w, w.low,
                     i % sub.w.taps.count);
  }
  problem->height = static_cast<int>(out.h);
  problem->cols = static_cast<int>(out.w);
  problem->channels = static_cast<int>(out.c);
  problem->strips = tiling->strips;
  problem->per_image = tiling->groups * tiling->strips;
  problem->tiles = static_cast<int>(out.n * problem->per_image);
  problem->whole = problem->tiles;
  // Tiles that some SMs would have alone at the end: in pieces, if those are no
  // more than the SMs.
  const int last = problem->tiles % blocks;
  const int pieces =
      tiling->piece_rows > 0 && call.plan.tile_m != kGroupRowBandPixels
          ? tiling->rows / tiling->piece_rows
          : 1;
  problem->pieces = pieces;
  if (problem->tiles > blocks && pieces > 1 && last * pieces <= blocks) {
    problem->whole -= last;
    problem->tiles = problem->whole + last * pieces;
  }
  const RowBandFilter filter = RowBandFilterOf(g, in);
  problem->tap_bytes = filter.rows * filter.row_bytes;
  problem->reduction_steps = RowBandSteps(in);
  problem->reciprocal = (65536 + tiling->width - 1) / tiling->width;
  const bool encoded =
      filter.row_bytes == 128
          ? EncodeTiled(&problem->weights, call.type, call.rhs,
                        {g.K, g.group_C(), g.taps()}, {64, filter.rows, 1})
          : EncodeHalfLines(&problem->weights, call.type, call.rhs,
                            {g.K, g.C, g.taps()}, {32, filter.rows, 1},
                            Copy::kLoad);
  return encoded && EncodeRowBands(call, in, *tiling, problem->input) &&
         EncodeTiled(&problem->output, call.type, call.result,
                     {out.c, out.w, out.h, out.n},
                     {64, tiling->cols, tiling->rows, 1}, Copy::kStore) &&
         EncodeTiled(&problem->piece, call.type, call.result,
                     {out.c, out.w, out.h, out.n},
                     {64, tiling->cols, std::max(tiling->piece_rows, 1), 1},
                     Copy::kStore);
}

template <typename Kernel, typename EpilogueT>
cudaError_t LaunchRowBand(Kernel* kernel, const RowBandProblem& problem,
                          const ConvCall& call, Stage stage,
                          cudaStream_t stream, const EpilogueT& epilogue) {
  const int bytes = static_cast<int>(call.g.taps()) * problem.tap_bytes +
                    problem.tiling.stages * problem.tiling.stage_bytes +
                    static_cast<int>(sizeof(RowBandBarriers));
  // To one limit: threads may launch the kernel for several geometries at once.
  const cudaError_t raised = RaiseSharedMemory(
      kernel, kMostShared + static_cast<int>(sizeof(RowBandBarriers)));
  if (raised != cudaSuccess || stage == Stage::kPrepare) return raised;
  const int units = problem.units;
  const int blocks = units * std::min(problem.tiles, call.plan.blocks / units);
  kernel<<<blocks, kThreads, bytes, stream>>>(problem, epilogue);
  return cudaGetLastError();
}

// epilogue: without residual and z. kWidth: kOneGroup or kBoxGroups.
template <typename T, Contiguous kWeights, int kWidth = kOneGroup,
          typename EpilogueT = NoEpilogue>
cudaError_t RunRowBand(const ConvCall& call, const Activations& in,
                       const Activations& out, const SubproblemAxes& sub,
                       Stage stage, cudaStream_t stream,
                       const EpilogueT& epilogue = {}) {
  RowBandProblem problem{};
  if (!MakeRowBandProblem(call, in, out, sub, &problem)) {
    return cudaErrorInvalidValue;
  }
  auto launch = [&](auto* kernel) {
    return LaunchRowBand(kernel, problem, call, stage, stream, epilogue);
  };
  const bool strips = call.plan.tile_m == kColumnStripPixels;
  if constexpr (kWeights == Contiguous::kRows && kWidth == kOneGroup) {
    if (HasTwoBoxes(call.g, in)) {
      return strips ? launch(&RowBandKernel<T, kWeights, true, EpilogueT,
                                            kWidth, true>)
                    : launch(&RowBandKernel<T, kWeights, false, EpilogueT,
                                            kWidth, true>);
    }
  }
  return strips ? launch(&RowBandKernel<T, kWeights, true, EpilogueT, kWidth>)
                : launch(&RowBandKernel<T, kWeights, false, EpilogueT, kWidth>);
}

}  // namespace jax_convbatch::hopper
