// SPDX-License-Identifier: Apache-2.0
// What a block of the convolution kernel is made of: its configuration, its
// shared memory, and the tiles that it works on.
#pragma once

#include <algorithm>

#include "cuda/sm90/epilogue/store_tile.cuh"
#include "cuda/sm90/kernels/conv/depth_taps.cuh"
#include "cuda/sm90/kernels/conv/residue_n_tiles.cuh"
#include "cuda/sm90/problem/conv_problem.h"
#include "cuda/sm90/problem/group_width.h"
#include "cuda/sm90/problem/k_slices.h"

namespace jax_convbatch::hopper {

// Ping-pong: the warpgroups take turns with tiles of kM x kN, so that one
// stores while the other multiplies. Cooperative: they multiply the halves of
// one tile.
enum class Schedule { kPingPong, kCooperative };

// How a tile's sum is formed: in one go, or in K slices (conv_k_slices.cuh), or
// a tile has one K slice alone (conv_tf32_k_slices.cuh).
enum class Sum { kWhole, kKSlices, kPartial };

// Where a K slice begins among the stages of a sum.
__host__ __device__ constexpr int KSliceBegin(int iterations, int k_slice,
                                              int k_slices = kSumKSlices) {
  return iterations * k_slice / k_slices;
}

// kStores: buffers for finished tiles. kZeros: whether there may be
// sub-problems that no tap reaches. kWeights: kRows where output channels are
// contiguous (fprop), kReduction where input channels are (dgrad). kResident:
// stages of weights that stay in shared memory, all that a tile sums, where
// every tile of a block has the same channels; 0: they come anew. kWidth: how
// the groups' channels lie in tiles, see group_width.h.
template <typename T_, int kM_, int kN_, Schedule kSchedule, int kStages_,
          int kStores_, bool kZeros_, Contiguous kWeights_, int kResident_ = 0,
          int kWidth_ = kOneGroup>
struct ConvConfig {
  using T = T_;
  static constexpr int kM = kM_, kN = kN_, kStages = kStages_;
  static constexpr int kStores = kStores_;
  static constexpr bool kCooperative = kSchedule == Schedule::kCooperative;
  static constexpr bool kZeros = kZeros_;
  static constexpr Contiguous kWeights = kWeights_;

  static constexpr Sum kSum = Sum::kWhole;
  static constexpr bool kSumsApart = false;
  static constexpr int kSumBytes = 0;
  static constexpr int kResident = kResident_;
  static constexpr int kWidth = kWidth_;
  static_assert(!kIsNarrow<kWidth> || (kN == 64 && kResident == 0));

  static constexpr int kInputBytes = kM * 128;
  // Of narrow groups a row holds the output channels of all.
  static constexpr int kWeightBytes = (kIsNarrow<kWidth> ? kWidth : kN) * 128;
  static constexpr int kStageBytes =
      kInputBytes + (kResident > 0 ? 0 : kWeightBytes);
  static constexpr int kTileBytes = kM * kN * 2;          // of the output
  static constexpr int kIssuers = kResident > 0 ? 1 : 2;  // that fill a stage
  // What one warpgroup multiplies, and the warps that use a stage.
  static constexpr int kGroupM = kCooperative ? kM / kConsumers : kM;
  static constexpr int kWarps =
      (kCooperative ? kConsumers : 1) * (kWarpgroup / 32);
};

// fprop's tiles of 160 channels with their filter in boxes of 64, of whose last
// one half is not used: they are half as many lines to copy, but a stage less.
template <typename T>
struct InWholeBoxes : ConvConfig<T, 128, 160, Schedule::kPingPong, 4, 1, false,
                                 Contiguous::kRows> {
  using Base = ConvConfig<T, 128, 160, Schedule::kPingPong, 4, 1, false,
                          Contiguous::kRows>;
  static constexpr int kWeightBytes = 3 * kBoxBytes;
  static constexpr int kStageBytes = Base::kInputBytes + kWeightBytes;
};

// Output channels of a box of fprop's filter.
template <typename Config>
inline constexpr int kFilterBox = kBoxChannels<Config::kN>;
template <typename T>
inline constexpr int kFilterBox<InWholeBoxes<T>> = 64;

// Of a small tile, a warpgroup keeps what it has added so far in registers.
template <typename Config>
struct InKSlices : Config {
  static constexpr Sum kSum = Sum::kKSlices;
};

// Of a large one, the warpgroups take turns with the K slices, which they add
// up in shared memory: in the buffer of the finished tile, or apart from it.
template <typename T, Contiguous kWeights, bool kApart>
struct LargeInKSlices : ConvConfig<T, 128, 128, Schedule::kPingPong,
                                   kApart ? 4 : 5, 1, false, kWeights> {
  static constexpr Sum kSum = Sum::kKSlices;
  static constexpr bool kSumsApart = kApart;
  static constexpr int kSumBytes = 128 * 128 * 4;
};

// Stages that are copied before all barriers stand.
inline constexpr int kFirstStages = 2;

// The ring's barriers of those stages, and all its others; each by one thread.
template <int kStages>
__device__ __forceinline__ void InitFirstStages(RingBarriers<kStages>& ring,
                                                int issuers) {
  for (int i = 0; i < kFirstStages; ++i) {
    BarrierInit(SharedAddress(&ring.full[i]), issuers);
  }
}
template <int kStages>
__device__ __forceinline__ void InitOtherStages(RingBarriers<kStages>& ring,
                                                int issuers, int users) {
  for (int i = 0; i < kStages; ++i) {
    if (i >= kFirstStages) BarrierInit(SharedAddress(&ring.full[i]), issuers);
    BarrierInit(SharedAddress(&ring.empty[i]), users);
  }
}

// A tile of so many stages is bound by the tensor cores, not by its stores, but
// where its weights stay in shared memory.
inline constexpr int kPacedIterations = 4;
// A stride's classes write more for what they sum: of such a launch, if all
// classes have taps, the longest tile.
inline constexpr int kPacedClasses = 16;

template <typename Config>
struct ConvBarriers {
  RingBarriers<Config::kStages> ring;
  StoreBarriers<Config::kStores> stores;
  uint64_t turn[kConsumers];  // the other warpgroup's tile is under way
  uint64_t residual[Config::kStores];  // it is in the buffer
  uint64_t resident;                   // the weights that stay are there
  uint64_t sums[kConsumers];           // a warpgroup has added a K slice

  // Of the first stages, and of all else; each by one thread.
  __device__ void InitFirst() {
    InitFirstStages(ring, Config::kIssuers);
    BarrierInit(SharedAddress(&resident), 1);
    FenceBarrierInit();
  }
  __device__ void Init() {
    InitOtherStages(ring, Config::kIssuers, Config::kWarps);
    stores.Init(Config::kWarps);
    for (uint64_t& barrier : turn) {
      BarrierInit(SharedAddress(&barrier), kWarpgroup / 32);
    }
    for (uint64_t& barrier : sums) {
      BarrierInit(SharedAddress(&barrier), kWarpgroup / 32);
    }
    for (uint64_t& barrier : residual) {
      BarrierInit(SharedAddress(&barrier), 1);
    }
    FenceBarrierInit();
  }
};

// Addresses in shared memory. Swizzled boxes start at multiples of 1024.
template <typename Config>
struct ConvShared {
  static constexpr int kStoreOffset = Config::kStages * Config::kStageBytes;
  static constexpr int kStoreBytes = Config::kStores * Config::kTileBytes;
  static constexpr int kSumOffset =
      kStoreOffset + (Config::kSumsApart ? kStoreBytes : 0);
  static constexpr int kZeroOffset =
      std::max(kStoreOffset + kStoreBytes, kSumOffset + Config::kSumBytes);
  static constexpr int kResidentOffset =
      kZeroOffset + (Config::kZeros ? kBoxBytes : 0);
  static constexpr int kBarrierOffset =
      kResidentOffset + Config::kResident * Config::kWeightBytes;
  static constexpr int kBytes = kBarrierOffset + sizeof(ConvBarriers<Config>);
};

// A tile of the launch: sub-problem, first pixel, first channel, and how many
// stages it takes. It may lie past the sub-problem's end: then it is nothing.
// Of several groups: the first input channel, and the first channel's place in
// its group, and the group. Of volumes: which taps of depth.
struct ConvTile {
  const ConvSubproblem* sub;
  int pixel, channel, iterations;
  int input_channel, in_group, group;
  DepthTaps depth;
};

// Of volumes, leaves out taps of depth that read no slice of x for any of the
// tile's `pixels`. Not for sums in K slices: where one begins may not depend on
// the tile.
__device__ __forceinline__ void LeaveOutPadding(int pixels, ConvTile* tile) {
  const ConvSubproblem& sub = *tile->sub;
  auto slice = [&](int pixel) { return pixel / sub.cols / sub.rows; };
  const int last = min(tile->pixel + pixels, sub.pixels) - 1;
  const int begin = slice(tile->pixel), image = begin / sub.slices;
  int low = begin - image * sub.slices;
  int high = slice(last) - image * sub.slices;
  // It reaches into the next image.
  if (high >= sub.slices) low = 0, high = sub.slices - 1;
  tile->depth =
      TapsInside(sub.input_d + low * sub.input_step_d,
                 sub.input_d + high * sub.input_step_d, sub.taps_d.count,
                 sub.taps_d.offset_step, sub.input_slices);
  tile->iterations =
      (tile->depth.end - tile->depth.first) * sub.slice_iterations;
}

template <typename Config, int kSubs>
__device__ __forceinline__ ConvTile TileAt(const ConvProblem<kSubs>& problem,
                                           int tile) {
  int unit = tile, number = 0;  // of the sub-problem
  if constexpr (kSubs > 1) {
    if (problem.sub_tiles > 0) {
      number = tile / problem.sub_tiles;
      unit = tile - number * problem.sub_tiles;
    } else {
      // What lies side by side in the output is written together; the order
      // rotates, so that every block gets tiles of all sub-problems.
      unit = tile / problem.subs;
      number = (tile + unit) % problem.subs;
    }
  }
  const int row = unit / problem.n_tiles;
  const int column = unit - row * problem.n_tiles;
  const int channel = column * Config::kN;
  const int pixel = row * Config::kM;
  int input_channel = 0, in_group = channel, group = 0;
  if constexpr (Config::kWidth != kOneGroup) {
    group = column / problem.group_tiles;
    input_channel = group * problem.group_inputs;
    in_group = (column - group * problem.group_tiles) * Config::kN;
  }
  const ConvSubproblem* sub = &problem.sub[number];
  const int iterations =
      kSubs == 1 || pixel < sub->pixels ? sub->iterations : 0;
  ConvTile at = {sub,           pixel,    channel, iterations,
                 input_channel, in_group, group,   {0, sub->taps_d.count}};
  if constexpr (Config::kWidth == kOneGroup && Config::kSum == Sum::kWhole) {
    if (__builtin_expect(problem.volumes, false) && iterations > 0) {
      LeaveOutPadding(Config::kM, &at);
    }
  }
  return at;
}

// How far a block's second tile is from its first: where the longest tiles come
// first, those that follow begin with the blocks that had the shortest.
template <int kSubs>
__device__ __forceinline__ int SecondTile(const ConvProblem<kSubs>& problem) {
  const int blocks = gridDim.x;
  return kSubs > 1 && problem.sub_tiles > 0 ? 2 * (blocks - blockIdx.x) - 1
                                            : blocks;
}

// Calls visit(tile) for the tiles of this block, in order.
template <typename Config, int kSubs, typename Visit>
__device__ __forceinline__ void ForTiles(const ConvProblem<kSubs>& problem,
                                         Visit visit) {
  int step = SecondTile(problem);
  for (int t = blockIdx.x; t < problem.tiles; t += step, step = gridDim.x) {
    visit(TileAt<Config>(problem, t));
  }
}

}  // namespace jax_convbatch::hopper
