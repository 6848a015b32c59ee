// SPDX-License-Identifier: Apache-2.0
// single_wave_kernel.cuh's tiles in f32: of few outputs, a block for each, all
// at once. What multiplies and in which order is conv_tf32_kernel.cuh's, where
// channels are rows and pixels columns anyway.
//
// Where three taps of a row share the pixels of a stage, a tile takes in some
// 60% of what it does else: what those columns give that lie between two rows
// of outputs is not written.
#pragma once

#include <algorithm>

#include "cuda/sm90/kernels/conv/conv_tf32_kernel.cuh"
#include "cuda/sm90/kernels/single_wave/single_wave_kernel.cuh"

namespace jax_convbatch::hopper {

// The most pixels, a multiple of eight, of which a tile is a multiple.
constexpr int StoredAtOnce(int pixels) {
  int subs = 1;
  while (pixels / subs > 104 || pixels % (8 * subs) != 0) ++subs;
  return pixels / subs;
}

// kGroups: warpgroups, of 64 channels each, that share the pixels of a stage.
// kTaps: as Tf32Config. kOneBox: of kRows, whether one box holds a stage's
// filter, which comes sooner than two of 32 channels.
template <int kPixels, int kGroups_, Contiguous kWeights_, int kTaps_ = 1,
          bool kOneBox_ = false>
struct SingleWaveTf32Config {
  static constexpr bool kOneBox = kOneBox_;
  static constexpr int kM = kPixels, kGroups = kGroups_, kN = 64 * kGroups;
  static constexpr Contiguous kWeights = kWeights_;
  static constexpr int kTaps = kTaps_;
  // The multiplier is done with a small tile before the next registers come.
  static constexpr bool kAhead = (kTaps > 1 || kOneBox) && kM <= 112;
  static constexpr int kWidth = kOneGroup;
  static constexpr int kGroupN = 64, kBlocks = 1;
  static constexpr int kInputBoxes = 1;
  static constexpr int kBoxPixels = kM + (kTaps == 1 ? 0 : kTapReach);
  static constexpr int kInputBytes = kBoxPixels * 128;
  static constexpr int kTapBytes = kN * 128;
  static constexpr int kStageBytes = kInputBytes + kTaps * kTapBytes;
  static constexpr int kIssuers = 2;
  // Of a warpgroup's tile, in equal parts.
  static constexpr int kStorePixels = StoredAtOnce(kM);
  static constexpr int kStoreBoxBytes = kStorePixels * 128;
  static constexpr int kStoreBytes = kGroupN / kTf32Block * kStoreBoxBytes;
  static constexpr int kStoreBuffers = 1, kResident = 0;
  static constexpr int kStages =
      std::min(16, (kMostShared - 1024 - kGroups * kStoreBytes) / kStageBytes);
  static_assert(kStages >= kFirstStages);
  static constexpr int kThreads = kGroups * kWarpgroup + 64;
  static constexpr int kStoreOffset = kStages * kStageBytes;
  static constexpr int kBarrierOffset = kStoreOffset + kGroups * kStoreBytes;
};

template <typename Config, int kSubs, typename Walk>
__device__ __forceinline__ void CopySingleWaveWeights(
    const ConvProblem<kSubs>& problem, const ConvTile& tile, const Walk& walk,
    int boxes, uint32_t weights, uint32_t full) {
  if constexpr (Config::kOneBox) {
    static_assert(Config::kTaps == 1);
    BarrierArriveExpect(full, Config::kTapBytes);
    LoadTile4(weights, problem.weights, full, 0, walk.block * kTf32Block,
              tile.channel / kTf32Block, FilterTap(problem, *tile.sub, walk));
  } else {
    CopyTf32Weights<Config>(problem, tile, walk, boxes, weights, full);
  }
}

// Copies of `count` stages those from the first few on.
template <typename Config, Operand kOperand, int kSubs, typename Walk>
__device__ __forceinline__ void CopySingleWave(
    const ConvProblem<kSubs>& problem, const ConvTile& tile, Walk walk,
    int boxes, int count, uint32_t ring,
    RingBarriers<Config::kStages>& barriers) {
  RingPosition<Config::kStages> at;
  at.stage = kFirstStages;
#pragma unroll
  for (int i = 0; i < kFirstStages; ++i) {
    walk.Advance(*tile.sub);
  }
  if (at.stage == Config::kStages) at = {0, 1};
  for (int i = kFirstStages; i < count; ++i) {
    const uint32_t full = SharedAddress(&barriers.full[at.stage]);
    const uint32_t input = ring + at.stage * Config::kStageBytes;
    BarrierWait(SharedAddress(&barriers.empty[at.stage]), at.round ^ 1);
    if (ElectOne()) {
      if constexpr (kOperand == Operand::kInput) {
        CopyTf32Input<Config>(problem, tile, walk, input, full);
      } else {
        CopySingleWaveWeights<Config>(problem, tile, walk, boxes,
                                      input + Config::kInputBytes, full);
      }
    }
    at.Advance();
    walk.Advance(*tile.sub);
  }
}

// MultiplyFragments with the registers of two units under way.
template <typename Config>
__device__ __forceinline__ void MultiplyAhead(
    float (&acc)[Config::kM / 2], int count, uint32_t weights, uint32_t input,
    const FragmentLoader<1>& loader, RingBarriers<Config::kStages>& barriers,
    int step) {
  constexpr int kTaps = Config::kTaps;
  static_assert(Config::kStages >= 3);
#pragma unroll
  for (int i = 0; i < Config::kM / 2; ++i) acc[i] = 0.0f;
  const int units = count * kTaps;
  using Fragments = uint32_t[4][1][4];
  const ReleaseOwn release;
  RingPosition<Config::kStages> loaded, at;
  int loaded_tap = 0, tap = 0, previous = -1;
  auto load = [&](Fragments& a) {
    if (loaded_tap == 0) {
      BarrierWait(SharedAddress(&barriers.full[loaded.stage]), loaded.round);
    }
    const uint32_t from = weights + loaded.stage * Config::kStageBytes +
                          loaded_tap * Config::kTapBytes;
#pragma unroll
    for (int k = 0; k < 4; ++k) loader.Load(from, k, a[k]);
    if (++loaded_tap == kTaps) {
      loaded_tap = 0;
      loaded.Advance();
    }
  };
  auto multiply = [&](int unit, const Fragments& a, Fragments& next) {
    const uint64_t b =
        Descriptor(input + at.stage * Config::kStageBytes + tap * step);
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      WgmmaTf32Columns<Config::kM>(
          acc, a[k][0], b + k * kReductionStep<Contiguous::kReduction>);
    }
    WgmmaCommit();
    WgmmaWait<1>();
    if (tap == 0 && previous >= 0) {
      release(SharedAddress(&barriers.empty[previous]));
    }
    if (++tap == kTaps) {
      tap = 0;
      previous = at.stage;
      at.Advance();
    }
    if (unit + 2 < units) load(next);
  };
  if (units == 0) return;
  Fragments a[3];
  load(a[0]);
  if (units > 1) load(a[1]);
  for (int unit = 0; unit < units; unit += 3) {
    multiply(unit, a[0], a[2]);
    if (unit + 1 == units) break;
    multiply(unit + 1, a[1], a[0]);
    if (unit + 2 == units) break;
    multiply(unit + 2, a[2], a[1]);
  }
  WgmmaWait<0>();
}

// Adds a bias and relu as store_tf32.cuh would, to a warpgroup's channels from
// `channel` on.
template <typename EpilogueT, int kHalf>
__device__ __forceinline__ void AddPlain(const EpilogueT& epilogue, int channel,
                                         int channels, float (&acc)[kHalf]) {
  const FragmentLane<1> lane(threadIdx.x);
  const int k =
      channel + lane.box * kTf32Block + lane.chunk * 4 + lane.half * 2;
  float2 bias = make_float2(0, 0);
  if (epilogue.bias != nullptr && k < channels) {
    bias = __ldg(static_cast<const float2*>(epilogue.bias) + k / 2);
  }
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    acc[i] = acc[i] + (i & 2 ? bias.y : bias.x) + 0.0f;
    if (epilogue.relu) acc[i] = Activate(Activation::kRelu, acc[i]);
  }
}

// Several sub-problems: those of a stride, of which the first alone has taps;
// the others are zeros.
template <typename Config, int kSubs, typename EpilogueT>
__global__ void __launch_bounds__(Config::kThreads, 1)
    SingleWaveTf32Kernel(const __grid_constant__ ConvProblem<kSubs> problem,
                         const __grid_constant__ EpilogueT epilogue) {
  constexpr Output kOutput = kTf32Output<Config, kSubs>;
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& barriers = *reinterpret_cast<SingleWaveBarriers<Config>*>(
      memory + Config::kBarrierOffset);
  const uint32_t shared = SharedAddress(memory);
  // As in ConvKernel.
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  constexpr int kInputWarp = Config::kGroups * kWarpgroup / 32;
  if (warp >= kInputWarp) {
    const bool first = warp == kInputWarp;
    if (first) {
      if (ElectOne()) barriers.InitFirst();
      NamedBarrierArrive(kFirstBarrier, Config::kThreads);
    }
    const ConvTile tile = SingleWaveTile<Config>(problem, blockIdx.x);
    const int boxes = FilterBoxes<Config>(problem, tile);
    const int count = tile.iterations / Config::kTaps;
    ByAxes<Config>(problem, [&](auto volumes) {
      const Tf32Walk<Config, decltype(volumes)::value> walk(tile);
      if (first) {
        if (ElectOne()) {
          auto at = walk;
#pragma unroll
          for (int i = 0; i < kFirstStages; ++i) {
            if (i >= count) break;
            const uint32_t full = SharedAddress(&barriers.ring.full[i]);
            const uint32_t input = shared + i * Config::kStageBytes;
            CopyTf32Input<Config>(problem, tile, at, input, full);
            CopySingleWaveWeights<Config>(problem, tile, at, boxes,
                                          input + Config::kInputBytes, full);
            at.Advance(*tile.sub);
          }
        }
        NamedBarrier(kRestBarrier, 64);
        CopySingleWave<Config, Operand::kInput>(problem, tile, walk, boxes,
                                                count, shared, barriers.ring);
      } else {
        NamedBarrier(kFirstBarrier, Config::kThreads);
        CopySingleWave<Config, Operand::kWeights>(problem, tile, walk, boxes,
                                                  count, shared, barriers.ring);
      }
    });
    return;
  }
  if (threadIdx.x == 32) {
    PrefetchMap(problem.sub[0].input);
    PrefetchMap(problem.weights);
    if constexpr (kOutput != Output::kThreads) {
      PrefetchMap(problem.sub[0].output);
    }
  }
  if (warp == 0) {
    if (ElectOne()) barriers.Init();
    NamedBarrierArrive(kRestBarrier, 64);
  }
  const ConvTile tile = SingleWaveTile<Config>(problem, blockIdx.x);
  const int group = warp / (kWarpgroup / 32);
  const int channel = tile.channel + 64 * group;
  // Its barrier is the third or fourth.
  Tf32Store<Config, kOutput> out(
      kRestBarrier + group,
      shared + Config::kStoreOffset + group * Config::kStoreBytes);
  const int stages = tile.iterations / Config::kTaps;
  const uint32_t weights = shared + Config::kInputBytes +
                           group * (Config::kTapBytes / Config::kGroups);
  const int step = tile.sub->taps_w.offset_step * 128;
  if constexpr (kSubs > 1) {
    // While the first stages come.
    if (channel < problem.channels) {
      out.StoreZeros(problem.sub + 1, int(problem.subs) - 1, tile.pixel,
                     channel, problem.channels);
    }
  }
  RingPosition<Config::kStages> at;
  float acc[1][Config::kM / 2];
  NamedBarrier(kFirstBarrier, Config::kThreads);
  if constexpr (Config::kWeights == Contiguous::kRows) {
    const FragmentLoader<1> loader(threadIdx.x % 4, 4);
    if constexpr (Config::kAhead) {
      MultiplyAhead<Config>(acc[0], stages, weights, shared, loader,
                            barriers.ring, step);
    } else {
      MultiplyFragments<Config::kTaps>(
          acc, stages, weights, shared, Config::kStageBytes, loader,
          barriers.ring, at, {Config::kTapBytes, step});
    }
  } else {
    MultiplyTaps<Config>(acc, stages, shared, weights, barriers.ring, at, step);
  }
  if (channel < problem.channels) {
    if constexpr (EpilogueT::kPresent) {
      AddPlain(epilogue, channel, problem.channels, acc[0]);
    }
    out.Store(acc, *tile.sub, tile.pixel, channel, problem.channels);
    out.Finish();
  }
}

}  // namespace jax_convbatch::hopper
