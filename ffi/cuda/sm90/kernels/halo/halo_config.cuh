// SPDX-License-Identifier: Apache-2.0
// What a block of halo_kernel.cuh is made of: its shared memory, its barriers,
// and the tiles that it works on.
#pragma once

#include "cuda/sm90/copy/pipeline.cuh"
#include "cuda/sm90/kernels/conv/depth_taps.cuh"
#include "cuda/sm90/kernels/halo/halo_problem.h"

namespace jax_convbatch::hopper {

// Halos of x and stages of weights: what fits in shared memory. kWeights: of
// fprop the filter's rows are contiguous, of dgrad the channels that it sums,
// and of f32 always, as the multiplier takes no others.
//
// Policy: what becomes of x before the product and of the sums after it, one of
// layer_tiles.cuh or of kernels/norm_act. It has
//   Problem, kMaxHaloPixels: what it is told, and the largest halo;
//   kActivators, Activate(): warps that change a halo where it lies;
//   kFactorBytes, FactorBytes(), CopyFactors(): room for what they need with a
//     halo, how much of it there is, and its copies;
//   kOutputs, Write(), Store(): buffers of a tile, what goes to them from the
//     registers, and from them to memory;
//   kSums, StorePartials(): numbers of each column that a tile sums.
template <typename T_, Contiguous kWeights_, int kN_, int kHalos_, int kStages_,
          typename Policy_>
struct HaloConfig {
  using T = T_;
  using Policy = Policy_;
  using Problem = typename Policy::Problem;
  static constexpr Contiguous kWeights = kWeights_;
  static constexpr int kN = kN_, kHalos = kHalos_, kStages = kStages_;
  static constexpr int kBlock = 128 / int{sizeof(T)};  // channels
  static constexpr bool kTf32 = std::is_same_v<T, float>;
  static constexpr bool kByRows = kWeights == Contiguous::kRows;
  static_assert(!kTf32 || !kByRows);

  static constexpr int kHaloBytes = Policy::kMaxHaloPixels * 128;
  static_assert(kHaloBytes % 1024 == 0);
  static constexpr int kWeightBoxes = kByRows ? (kN + 63) / 64 : 1;
  static constexpr int kWeightBytes =
      kByRows ? kWeightBoxes * kBoxBytes : kN * 128;
  static constexpr int kTileBytes = kHaloTilePixels * kN * int{sizeof(T)};
  static constexpr int kSumBytes = Policy::kSums * kN * 4;
  static constexpr int kFactorBytes = Policy::kFactorBytes;

  static constexpr int kWeightOffset = kHalos * kHaloBytes;
  static constexpr int kOutputOffset = kWeightOffset + kStages * kWeightBytes;
  static constexpr int kSumOffset =
      kOutputOffset + Policy::kOutputs * kTileBytes;
  static constexpr int kFactorOffset = kSumOffset + kSumBytes;
  static constexpr int kBarrierOffset = kFactorOffset + kHalos * kFactorBytes;

  // Two warpgroups multiply. One warp of another copies weights, one halos. Of
  // a policy that changes halos, other warps of two warpgroups do. Their
  // registers are together what a block is launched with.
  static constexpr int kActivators = Policy::kActivators;
  static constexpr int kOthers = kActivators > 0 ? 2 : 1;  // warpgroups
  static constexpr int kThreads = (kConsumers + kOthers) * kWarpgroup;
  static constexpr int kOtherRegisters =
      kActivators > 0 ? 56 : kProducerRegisters;
  static constexpr int kRegisters = kActivators > 0 ? 200 : kConsumerRegisters;
  static_assert(kActivators + 2 <= 4 * kOthers);
};

template <typename Config>
struct HaloBarriers {
  RingBarriers<Config::kStages> weights;
  uint64_t copied[Config::kHalos];     // a halo is there
  uint64_t activated[Config::kHalos];  // and activated
  uint64_t used[Config::kHalos];       // and multiplied
  uint64_t turn[kConsumers];  // the other warpgroup's tile is under way
  uint64_t residual;          // it is in the buffer of the output
  uint64_t stored;            // from which a tile has been stored

  __device__ void Init() {  // by one thread
    weights.Init(1, kWarpgroup / 32);
    for (int i = 0; i < Config::kHalos; ++i) {
      BarrierInit(SharedAddress(&copied[i]), 1);
      if constexpr (Config::kActivators > 0) {
        BarrierInit(SharedAddress(&activated[i]), Config::kActivators);
      }
      BarrierInit(SharedAddress(&used[i]), kWarpgroup / 32);
    }
    for (uint64_t& barrier : turn) {
      BarrierInit(SharedAddress(&barrier), kWarpgroup / 32);
    }
    BarrierInit(SharedAddress(&residual), 1);
    BarrierInit(SharedAddress(&stored), 1);
    FenceBarrierInit();
  }
};

template <typename Config>
inline constexpr int kHaloShared =
    Config::kBarrierOffset + int{sizeof(HaloBarriers<Config>)};

// Which pixels, number `pixels` of all tiles of a channel, and its first
// channel.
struct HaloPlace {
  int pixels, channel;
};

// The first pixel of a block of 64: of slice `slice`, which is the image where
// there are two axes. `chunk`: which of its slice's units it lies in.
struct HaloBlock {
  int slice, row, col, chunk;
};

// Of a tile, block m.
__device__ __forceinline__ HaloBlock BlockOf(const HaloProblem& problem,
                                             int pixels, int m) {
  const bool squares = problem.tile == HaloTile::kSquares;
  const int unit = squares ? 2 * pixels + m : pixels;
  const int rows = unit / problem.units_w;
  HaloBlock block;
  block.slice = rows / problem.units_h;
  block.row = (rows - block.slice * problem.units_h) * problem.unit_rows;
  block.col = (unit - rows * problem.units_w) * problem.unit_cols;
  block.chunk = unit - block.slice * problem.units_h * problem.units_w;
  if (m > 0) {
    block.row += problem.tile == HaloTile::kBelow ? 8 : 0;
    block.col += problem.tile == HaloTile::kRow ? 64 : 0;
  }
  return block;
}

// Of a slice of y, the slice of x that the first tap of depth reads.
__device__ __forceinline__ int BaseSlice(const HaloProblem& problem,
                                         int slice) {
  return slice % problem.depth - problem.pad_d;
}

// Of a tile: see depth_taps.cuh.
__device__ __forceinline__ DepthTaps DepthTapsOf(const HaloProblem& problem,
                                                 int pixels) {
  if (problem.taps_d == 1) return {0, 1};
  const int one = BaseSlice(problem, BlockOf(problem, pixels, 0).slice);
  const int other =
      BaseSlice(problem, BlockOf(problem, pixels, problem.halos - 1).slice);
  return TapsInside(min(one, other), max(one, other), problem.taps_d,
                    problem.dilation_d, problem.d);
}

// Whether a block has anything to store.
__device__ __forceinline__ bool IsInside(const HaloProblem& problem,
                                         const HaloBlock& block) {
  return block.col < problem.q && block.row < problem.p &&
         block.slice < problem.slices;
}

// Calls visit(place, turn) for the tiles of this block, in order.
template <typename Config, typename Visit>
__device__ __forceinline__ void ForHaloTiles(const HaloProblem& problem,
                                             Visit visit) {
  int turn = 0;
  for (int t = blockIdx.x; t < problem.tiles; t += gridDim.x) {
    const int pixels = t / problem.n_tiles;
    visit(HaloPlace{pixels, (t - pixels * problem.n_tiles) * Config::kN},
          turn++);
  }
}

}  // namespace jax_convbatch::hopper
