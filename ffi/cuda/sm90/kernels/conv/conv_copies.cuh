// SPDX-License-Identifier: Apache-2.0
// The copies of fprop and dgrad: what a stage holds, and who issues it when.
#pragma once

#include "cuda/sm90/copy/copies_3d.cuh"
#include "cuda/sm90/copy/group_copies.cuh"
#include "cuda/sm90/copy/pipeline.cuh"
#include "cuda/sm90/kernels/conv/conv_config.cuh"
#include "cuda/sm90/kernels/conv/residue_n_tiles.cuh"
#include "cuda/sm90/problem/conv_problem.h"
#include "cuda/sm90/problem/k_slices.h"
#include "cuda/sm90/problem/residue_k_problem.h"

namespace jax_convbatch::hopper {

// The base pixel of a sub-problem's pixel.
template <bool kVolumes>
__device__ __forceinline__ PixelPlace InputPixel(const ConvSubproblem& sub,
                                                 int pixel) {
  const int row = pixel / sub.cols;
  const int slice = row / sub.rows;
  const int w = sub.input_w + (pixel - row * sub.cols) * sub.input_step_w;
  const int h = sub.input_h + (row - slice * sub.rows) * sub.input_step_h;
  if constexpr (!kVolumes) return {w, h, slice};
  const int image = slice / sub.slices;
  return {w, h, image,
          sub.input_d + (slice - image * sub.slices) * sub.input_step_d};
}

// So many taps of a row further: all taps of a block of channels, then the
// next.
template <bool kVolumes, int kTaps, typename Walk>
__device__ __forceinline__ void AdvanceTaps(const ConvSubproblem& sub,
                                            Walk& walk) {
  walk.s += kTaps;
  if (walk.s < sub.taps_w.count) return;
  walk.s = 0;
  if (++walk.r < sub.taps_h.count) return;
  walk.r = 0;
  if constexpr (kVolumes) {
    if (++walk.t < walk.depth.end) return;
    walk.t = walk.depth.first;
  }
  ++walk.block;
}

// Where the next stage of a tile comes from: a block of channels, a tap, and
// for the input the base pixel of the tile's first pixel. All taps of a block
// follow each other, so that a halo of its pixels may serve them all
// (kernels/halo).
template <bool kVolumes_>
struct StageWalk {
  static constexpr bool kVolumes = kVolumes_;
  PixelPlace at;
  DepthTaps depth;
  int r = 0, s = 0, t, block = 0;

  __device__ StageWalk(const ConvTile& tile)
      : at(InputPixel<kVolumes>(*tile.sub, tile.pixel)),
        depth(tile.depth),
        t(kVolumes ? depth.first : 0) {}

  __device__ void Advance(const ConvSubproblem& sub) {
    AdvanceTaps<kVolumes, 1>(sub, *this);
  }
};

// Where a K slice begins, of whatever walks by AdvanceTaps.
template <typename Walk>
__device__ __forceinline__ void Enter(const ConvKSlice& k_slice, Walk& walk) {
  walk.r = k_slice.r;
  walk.s = k_slice.s;
  walk.t = k_slice.t;
  walk.block = k_slice.block;
}

// From the base pixel to the tap that a walk has come to.
template <typename Walk>
__device__ __forceinline__ TapOffset OffsetOfTap(const ConvSubproblem& sub,
                                                 const Walk& walk) {
  return {walk.s * sub.taps_w.offset_step, walk.r * sub.taps_h.offset_step,
          walk.t * sub.taps_d.offset_step};
}

// Of the filter, the tap that a walk has come to.
template <int kSubs, typename Walk>
__device__ __forceinline__ int FilterTap(const ConvProblem<kSubs>& problem,
                                         const ConvSubproblem& sub,
                                         const Walk& walk) {
  int tap =
      (sub.taps_h.tap + walk.r * sub.taps_h.tap_step) * problem.filter_width +
      sub.taps_w.tap + walk.s * sub.taps_w.tap_step;
  if constexpr (Walk::kVolumes) {
    tap += (sub.taps_d.tap + walk.t * sub.taps_d.tap_step) * problem.slice_taps;
  }
  return tap;
}

// One warp issues the input's copies, another the weights': it helps small
// tiles, which are bound by how fast copies are issued. The whole warp walks,
// so that what it works out is known to be the same in all lanes, and one lane
// issues.
enum class Operand { kInput, kWeights };

template <typename Config, typename Problem, typename Walk>
__device__ __forceinline__ void CopyInput(const Problem& problem,
                                          const ConvTile& tile,
                                          const Walk& walk, uint32_t to,
                                          uint32_t full) {
  const ConvSubproblem& sub = *tile.sub;
  const TapOffset tap = OffsetOfTap(sub, walk);
  auto load = [&](const CUtensorMap& map) {
    if constexpr (Config::kWidth == kAnyGroups) {
      LoadGroupIm2col(to, map, full, walk.block * 64, walk.at.w, walk.at.h,
                      walk.at.image, tile.group, tap.w, tap.h);
    } else {
      LoadTap(Walk::kVolumes, to, map, full,
              tile.input_channel + walk.block * 64, walk.at, tap);
    }
  };
  if constexpr (kHasResidueK<Problem>) {
    const ConvResidueK& residue_k = problem.residue_k;
    if (walk.block == residue_k.block) {
      BarrierArriveExpect(full, Config::kM * 2 * residue_k.channels);
      load(residue_k.input);
      return;
    }
  }
  BarrierArriveExpect(full, Config::kInputBytes);
  load(sub.input);
}

template <typename Config>
__device__ __forceinline__ void LoadWeights(const ConvTile& tile, uint32_t to,
                                            uint32_t full, int block, int tap,
                                            const CUtensorMap& map) {
  if constexpr (Config::kWidth == kAnyGroups) {
    if constexpr (Config::kWeights == Contiguous::kRows) {
#pragma unroll
      for (int n = 0; n < Config::kN; n += 64) {
        LoadTile4(to + n * 128, map, full, tile.in_group + n, tile.group,
                  block * 64, tap);
      }
    } else {
      LoadTile4(to, map, full, block * 64, tile.group, tile.in_group, tap);
    }
  } else if constexpr (kIsNarrow<Config::kWidth>) {
    LoadTile3(to, map, full, tile.channel, 0, tap);
  } else if constexpr (Config::kWeights == Contiguous::kRows) {
#pragma unroll
    for (int n = 0; n < Config::kN; n += kFilterBox<Config>) {
      LoadTile3(to + n * 128, map, full, tile.channel + n, block * 64, tap);
    }
  } else {
    LoadTile3(to, map, full, tile.input_channel + block * 64, tile.in_group,
              tap);
  }
}

template <typename Config, typename Problem, typename Walk>
__device__ __forceinline__ void CopyWeights(const Problem& problem,
                                            const ConvTile& tile,
                                            const Walk& walk, uint32_t to,
                                            uint32_t full) {
  const int tap = FilterTap(problem, *tile.sub, walk);
  if constexpr (kHasResidueK<Problem>) {
    const ConvResidueK& residue_k = problem.residue_k;
    if (walk.block == residue_k.block) {
      BarrierArriveExpect(full, Config::kWeightBytes / 64 * residue_k.channels);
      LoadWeights<Config>(tile, to, full, walk.block, tap, residue_k.weights);
      return;
    }
  }
  BarrierArriveExpect(full, Config::kWeightBytes);
  LoadWeights<Config>(tile, to, full, walk.block, tap, problem.weights);
}

// Of a filter of one tap: all that a tile sums.
template <typename Config, typename Problem>
__device__ __forceinline__ void LoadResident(const Problem& problem,
                                             const ConvTile& tile, uint32_t to,
                                             uint64_t* barrier) {
  const uint32_t full = SharedAddress(barrier);
  BarrierArriveExpect(full, tile.iterations * Config::kWeightBytes);
  for (int i = 0; i < tile.iterations; ++i) {
    LoadWeights<Config>(tile, to + i * Config::kWeightBytes, full, i, 0,
                        problem.weights);
  }
}

// Copies the first stages of a block's first tile, by one warp and before the
// block's other barriers stand: a short launch waits for its first copy. The
// code stands first in the kernel, as a jump waits for its instructions.
template <typename Config, typename Problem, typename Walk>
__device__ __forceinline__ void CopyFirstStages(
    const Problem& problem, const ConvTile& tile, Walk walk, int count,
    uint32_t ring, RingBarriers<Config::kStages>& barriers) {
#pragma unroll
  for (int i = 0; i < kFirstStages; ++i) {
    if (i >= count) return;
    const uint32_t full = SharedAddress(&barriers.full[i]);
    const uint32_t input = ring + i * Config::kStageBytes;
    CopyInput<Config>(problem, tile, walk, input, full);
    if constexpr (Config::kResident == 0) {
      CopyWeights<Config>(problem, tile, walk, input + Config::kInputBytes,
                          full);
    }
    walk.Advance(*tile.sub);
  }
}

// Of `count` stages those from `first` on.
template <typename Config, Operand kOperand, typename Problem, typename Walk>
__device__ __forceinline__ void CopyStages(
    const Problem& problem, const ConvTile& tile, Walk walk, int first,
    int count, uint32_t ring, RingBarriers<Config::kStages>& barriers,
    RingPosition<Config::kStages>& at) {
  int i = 0;
#pragma unroll 1
  for (; i < min(first, count); ++i) {
    at.Advance();
    walk.Advance(*tile.sub);
  }
  for (; i < count; ++i) {
    const uint32_t full = SharedAddress(&barriers.full[at.stage]);
    const uint32_t input = ring + at.stage * Config::kStageBytes;
    BarrierWait(SharedAddress(&barriers.empty[at.stage]), at.round ^ 1);
    if (ElectOne()) {
      if constexpr (kOperand == Operand::kInput) {
        CopyInput<Config>(problem, tile, walk, input, full);
      } else {
        CopyWeights<Config>(problem, tile, walk, input + Config::kInputBytes,
                            full);
      }
    }
    at.Advance();
    walk.Advance(*tile.sub);
  }
}

// All stages but the first.
template <typename Config, Operand kOperand, typename Problem>
__device__ __forceinline__ void IssueCopies(
    const Problem& problem, uint32_t ring,
    RingBarriers<Config::kStages>& barriers) {
  ByAxes<Config>(problem, [&](auto volumes) {
    RingPosition<Config::kStages> at;
    int first = kFirstStages;
    ForTiles<Config>(problem, [&](const ConvTile& tile) {
      const StageWalk<decltype(volumes)::value> walk(tile);
      CopyStages<Config, kOperand>(problem, tile, walk, first, tile.iterations,
                                   ring, barriers, at);
      first = 0;
    });
  });
}

}  // namespace jax_convbatch::hopper
