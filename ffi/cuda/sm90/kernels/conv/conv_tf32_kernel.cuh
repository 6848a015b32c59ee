// SPDX-License-Identifier: Apache-2.0
// fprop and dgrad of f32, multiplied as TF32: the transpose of the product that
// conv_kernel.cuh computes, in the same persistent, warp-specialised way.
//
// The multiplier takes TF32 from shared memory only where the reduction is
// contiguous. Pixels have their channels so, and are the right operand; the
// filter is the left one, which may come from registers. dgrad's filter has the
// reduction contiguous too; fprop's has output channels contiguous, and the
// registers are loaded across its rows. Swapped roles also suit few output
// channels: a multiplication of 64 rows by 256 columns reads shared memory
// less than one of 64 by 64.
//
// Every tile shape adds in the same order. Where a geometry's sums come in K
// slices, they do in all its tiles (conv_tf32_k_slices.cuh).
#pragma once

#include "cuda/common/dependent_launch.cuh"
#include "cuda/sm90/arch/wgmma_tf32_columns.cuh"
#include "cuda/sm90/epilogue/store_tf32.cuh"
#include "cuda/sm90/kernels/conv/conv_kernel.cuh"
#include "cuda/sm90/kernels/conv/conv_tf32_copies.cuh"
#include "cuda/sm90/kernels/conv/conv_tf32_k_slices.cuh"
#include "cuda/sm90/kernels/conv/resident_plan.h"
#include "cuda/sm90/mainloop/tf32_fragments.cuh"
#include "cuda/sm90/problem/conv_problem.h"

namespace jax_convbatch::hopper {

// Named barriers: 1 and 2 are the stores', these order the warpgroups' turns.
inline constexpr int kTurnBarrier = 3;

// kM pixels by kN channels. kWeights: kRows where output channels are
// contiguous (fprop), kReduction where input channels are (dgrad). kTaps: how
// many taps of a filter row share a stage, and so the pixels that it holds: all
// of a row of that many, or each has a stage of its own.
//
// In the first case the pixels of a tile are walked with the columns that lie
// between the last of a row and the first of the next, so that every tap finds
// its pixels a fixed number further on. What those columns give is not written.
// kWidth: see group_width.h. kResident: see ConvConfig.
template <int kM_, int kN_, int kStages_, Contiguous kWeights_, int kTaps_ = 1,
          Schedule kSchedule = Schedule::kPingPong, int kWidth_ = kOneGroup,
          int kStoreBuffers_ =
              kSchedule == Schedule::kCooperative && kM_ == 256 ? 2 : 1,
          int kResident_ = 0>
struct Tf32Config {
  static constexpr int kM = kM_, kN = kN_, kStages = kStages_, kTaps = kTaps_;
  static constexpr Contiguous kWeights = kWeights_;
  static constexpr bool kCooperative = kSchedule == Schedule::kCooperative;
  static constexpr Sum kSum = Sum::kWhole;
  static constexpr int kWidth = kWidth_, kResident = kResident_;
  static_assert(!kIsNarrow<kWidth> && (kResident == 0 || kTaps == 1));
  static constexpr int kIssuers = kResident > 0 ? 1 : 2;  // that fill a stage

  // What one warpgroup multiplies, the warps that use a stage, and rows of the
  // multiplication.
  static constexpr int kGroupN = kCooperative ? kN / kConsumers : kN;
  static constexpr int kWarps =
      (kCooperative ? kConsumers : 1) * (kWarpgroup / 32);
  static constexpr int kBlocks = kGroupN / 64;
  // A box is at most 256 pixels; two of 136 have 8 at least to go on.
  static constexpr int kInputBoxes = kTaps == 1 ? 1 : 2;
  static constexpr int kBoxPixels = kTaps == 1 ? kM : kM / 2 + 8;
  static constexpr int kInputBytes = kInputBoxes * kBoxPixels * 128;
  static constexpr int kTapBytes = kN * 128;
  static constexpr int kStageBytes =
      kInputBytes + (kResident > 0 ? 0 : kTaps * kTapBytes);
  static constexpr int kRingBytes = kStages * kStageBytes;
  // A warpgroup writes its tile this many pixels at a time. More would cost
  // 256 x 64, and 192 x 128 of one warpgroup, their fifth stage.
  static constexpr int kStorePixels = kBlocks * kM > 256 ? 16 : 32;
  static constexpr int kStoreBoxBytes = kStorePixels * 128;
  static constexpr int kStoreBytes = kGroupN / kTf32Block * kStoreBoxBytes;
  static constexpr int kStoreBuffers = kStoreBuffers_;
  static constexpr int kResidentOffset =
      kRingBytes + kConsumers * kStoreBuffers * kStoreBytes;
  static constexpr int kSharedBytes =
      kResidentOffset + kResident * kTapBytes + 1024;
};

// Tiles whose weights stay (resident_plan.h) wait for memory: they are small,
// and have several buffers, so that no store waits for the one before.
template <int kN, Contiguous kWeights>
using ResidentTf32Config =
    Tf32Config<kResidentTf32Pixels, kN, kN == 64 ? 6 : 5, kWeights, 1,
               Schedule::kPingPong, kOneGroup, kN == 64 ? 4 : 2,
               ResidentTf32Stages(kN)>;

template <typename Config, Operand kOperand, typename Problem>
__device__ __forceinline__ void IssueTf32Copies(
    const Problem& problem, uint32_t ring,
    RingBarriers<Config::kStages>& barriers) {
  ByAxes<Config>(problem, [&](auto volumes) {
    RingPosition<Config::kStages> at;
    for (int t = blockIdx.x; t < problem.tiles; t += gridDim.x) {
      const int k_slice = KSliceAt<Config>(problem, t);
      const ConvTile tile = Tf32TileAt<Config>(problem, t, k_slice);
      Tf32Walk<Config, decltype(volumes)::value> walk(tile);
      if constexpr (Config::kSum == Sum::kPartial) {
        Enter(problem.k_slices.k_slice[k_slice], walk);
      }
      const int boxes = FilterBoxes<Config>(problem, tile);
      for (int i = 0; i < tile.iterations; i += Config::kTaps) {
        const uint32_t full = SharedAddress(&barriers.full[at.stage]);
        const uint32_t input = ring + at.stage * Config::kStageBytes;
        BarrierWait(SharedAddress(&barriers.empty[at.stage]), at.round ^ 1);
        if constexpr (kOperand == Operand::kInput) {
          CopyTf32Input<Config>(problem, tile, walk, input, full);
        } else {
          CopyTf32Weights<Config>(problem, tile, walk, boxes,
                                  input + Config::kInputBytes, full);
        }
        at.Advance();
        walk.Advance(*tile.sub);
      }
    }
  });
}

// All weights that a tile sums, of a filter of one tap.
template <typename Config, typename Problem>
__device__ __forceinline__ void CopyResidentTf32(const Problem& problem,
                                                 uint32_t to,
                                                 uint64_t* resident) {
  const ConvTile tile = TileAt<Config>(problem, blockIdx.x);
  const int boxes = FilterBoxes<Config>(problem, tile);
  Tf32Walk<Config, false> walk(tile);
  for (int i = 0; i < tile.iterations; ++i) {
    CopyTf32Weights<Config>(problem, tile, walk, boxes,
                            to + i * Config::kTapBytes,
                            SharedAddress(resident));
    walk.Advance(*tile.sub);
  }
}

// Multiplies `count` stages of a filter from shared memory, with several taps
// in each. `weights`: of stage 0.
template <typename Config>
__device__ __forceinline__ void MultiplyTaps(
    float (&acc)[Config::kBlocks][Config::kM / 2], int count, uint32_t input,
    uint32_t weights, RingBarriers<Config::kStages>& barriers,
    RingPosition<Config::kStages>& at, int step) {
#pragma unroll
  for (int m = 0; m < Config::kBlocks; ++m) {
#pragma unroll
    for (int i = 0; i < Config::kM / 2; ++i) acc[m][i] = 0.0f;
  }
  const bool signals = threadIdx.x % 32 == 0;
  int previous = -1;
  for (int i = 0; i < count; ++i) {
    BarrierWait(SharedAddress(&barriers.full[at.stage]), at.round);
    const int stage = at.stage * Config::kStageBytes;
    WgmmaFence();
#pragma unroll
    for (int tap = 0; tap < Config::kTaps; ++tap) {
      const uint64_t a = Descriptor(
          weights + (Config::kResident > 0 ? i * Config::kTapBytes
                                           : stage + tap * Config::kTapBytes));
      const uint64_t b = Descriptor(input + stage + tap * step);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        constexpr int kStep = kReductionStep<Contiguous::kReduction>;
#pragma unroll
        for (int m = 0; m < Config::kBlocks; ++m) {
          WgmmaTf32Columns<Config::kM>(
              acc[m], a + k * kStep + m * (kBoxBytes >> 4), b + k * kStep);
        }
      }
    }
    WgmmaCommit();
    WgmmaWait<1>();
    if (previous >= 0 && signals) {
      BarrierArrive(SharedAddress(&barriers.empty[previous]));
    }
    previous = at.stage;
    at.Advance();
  }
  WgmmaWait<0>();
  if (previous >= 0 && signals) {
    BarrierArrive(SharedAddress(&barriers.empty[previous]));
  }
}

template <typename Config, int kSubs, typename EpilogueT>
__device__ __forceinline__ void ConsumeTf32(
    const Tf32ProblemOf<Config, kSubs>& problem, const EpilogueT& epilogue,
    int group, uint32_t ring, RingBarriers<Config::kStages>& barriers,
    uint64_t* resident) {
  Tf32Store<Config, kTf32OutputOf<Config, kSubs>> out(
      group,
      ring + Config::kRingBytes +
          group * Config::kStoreBuffers * Config::kStoreBytes,
      problem.volumes);
  // Lane % 4 takes rows of the filter in order, as the multiplier takes the
  // pixels' channels.
  const FragmentLoader<Config::kBlocks> loader(threadIdx.x % 4, 4);
  // Its rows of the filter, 32 channels or one to 128 bytes.
  const int rows = Config::kCooperative ? group * Config::kGroupN : 0;
  constexpr bool kResident = Config::kResident > 0;
  const uint32_t weights =
      ring + (kResident ? Config::kResidentOffset : Config::kInputBytes) +
      rows * 128;
  if constexpr (kResident) BarrierWait(SharedAddress(resident), 0);
  RingPosition<Config::kStages> at;
  int turn = 0;
  for (int t = blockIdx.x; t < problem.tiles; t += gridDim.x, ++turn) {
    const int k_slice = KSliceAt<Config>(problem, t);
    const ConvTile tile = Tf32TileAt<Config>(problem, t, k_slice);
    const int channel = StoredChannel<Config>(tile) + rows;
    if constexpr (Config::kWidth == kAnyGroups) {
      out.EnterGroup(tile.group, problem.channels *
                                     (problem.n_tiles / problem.group_tiles));
    } else if constexpr (Config::kSum == Sum::kPartial) {
      out.EnterKSlice(k_slice);
    }
    const int stages = tile.iterations / Config::kTaps;
    // From tap to tap, in the pixels of a stage.
    const int step = tile.sub->taps_w.offset_step * 128;
    if (!Config::kCooperative && turn % kConsumers != group) {
      at.Skip(stages);
      continue;
    }
    // As in conv_kernel.cuh.
    if (!Config::kCooperative && turn > 0)
      NamedBarrier(kTurnBarrier + group, 2 * kWarpgroup);
    float acc[Config::kBlocks][Config::kM / 2];
    auto multiply = [&](int count) {
      if constexpr (Config::kWeights == Contiguous::kRows) {
        MultiplyFragments<Config::kTaps, kResident>(
            acc, count, weights, ring, Config::kStageBytes, loader, barriers,
            at, {Config::kTapBytes, step});
      } else {
        MultiplyTaps<Config>(acc, count, ring, weights, barriers, at, step);
      }
    };
    if constexpr (Config::kSum == Sum::kKSlices) {
      // From 0, as partial sums are added.
      AddInRegisters(
          acc, stages, problem.count, 0.0f,
          [&](int count, auto&&) { multiply(count); }, Nothing());
    } else {
      multiply(stages);
    }
    if (!Config::kCooperative && t + gridDim.x < problem.tiles) {
      NamedBarrierArrive(kTurnBarrier + 1 - group, 2 * kWarpgroup);
    }
    if constexpr (EpilogueT::kPresent) {
      out.Store(epilogue, acc, *tile.sub, tile.pixel, channel,
                problem.channels);
    } else {
      out.Store(acc, *tile.sub, tile.pixel, channel, problem.channels);
    }
  }
  out.Finish();
}

template <typename Config, int kSubs, typename EpilogueT>
__global__ void __launch_bounds__(kThreads, 1)
    ConvTf32Kernel(const __grid_constant__ Tf32ProblemOf<Config, kSubs> problem,
                   const __grid_constant__ EpilogueT epilogue) {
  extern __shared__ uint8_t shared[];
  __shared__ RingBarriers<Config::kStages> barriers;
  __shared__ uint64_t resident;  // the weights that stay are there
  const uint32_t ring = (SharedAddress(shared) + 1023) & ~1023u;
  if constexpr (Config::kSum == Sum::kPartial) LaunchDependents();
  if (threadIdx.x == 0) {
    if constexpr (Config::kResident > 0) {
      BarrierInit(SharedAddress(&resident), problem.sub[0].iterations);
    }
    barriers.Init(Config::kIssuers, Config::kWarps);
  }
  __syncthreads();

  const int warpgroup = threadIdx.x / kWarpgroup;
  if (warpgroup == 0) {
    GiveRegisters<kProducerRegisters>();
    if (threadIdx.x == 0) {
      IssueTf32Copies<Config, Operand::kInput>(problem, ring, barriers);
    } else if (Config::kResident > 0 && threadIdx.x == 32) {
      CopyResidentTf32<Config>(problem, ring + Config::kResidentOffset,
                               &resident);
    } else if (threadIdx.x == 32) {
      IssueTf32Copies<Config, Operand::kWeights>(problem, ring, barriers);
    }
  } else {
    TakeRegisters<kConsumerRegisters>();
    ConsumeTf32<Config, kSubs>(problem, epilogue, warpgroup - 1, ring, barriers,
                               &resident);
  }
}

}  // namespace jax_convbatch::hopper
