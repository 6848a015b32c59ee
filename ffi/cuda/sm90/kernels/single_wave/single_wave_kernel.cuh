// SPDX-License-Identifier: Apache-2.0
// fprop and dgrad of few outputs: a block for each tile, all at once.
//
// Small batches wait for what an SM takes in, some 64 bytes a cycle, and a tile
// of pixels x channels takes in as many bytes a stage as it has pixels and
// channels together. So tiles here are as large as makes them one for each SM:
// products have channels as rows, 64 or 128, and pixels as columns, of which
// there may be any multiple of eight.
//
// Each output adds in the same order as in conv_kernel.cuh.
#pragma once

#include "cuda/common/most_shared.h"
#include "cuda/sm90/arch/wgmma_columns.cuh"
#include "cuda/sm90/kernels/conv/conv_kernel.cuh"
#include "cuda/sm90/kernels/single_wave/single_wave_store.cuh"

namespace jax_convbatch::hopper {

// kGroups: warpgroups, of 64 channels each, that share the pixels of a stage.
template <typename T_, int kPixels, int kGroups_, Contiguous kWeights_>
struct SingleWaveConfig {
  using T = T_;
  static constexpr int kM = kPixels, kGroups = kGroups_, kN = 64 * kGroups;
  static constexpr Contiguous kWeights = kWeights_;
  static constexpr int kResident = 0;
  static constexpr int kWidth = kOneGroup;
  static constexpr int kInputBytes = kM * 128;
  static constexpr int kWeightBytes = kN * 128;
  static constexpr int kStageBytes = kInputBytes + kWeightBytes;
  static constexpr int kIssuers = 2;
  // Of a warpgroup: pixels are written 16 at a time.
  static constexpr int kTileBytes = (kM + 15) / 16 * 16 * 128;
  static constexpr int kStages =
      std::min(16, (kMostShared - 1024 - kGroups * kTileBytes) / kStageBytes);
  static constexpr int kThreads = kGroups * kWarpgroup + 64;
  static constexpr int kTileOffset = kStages * kStageBytes;
  static constexpr int kBarrierOffset = kTileOffset + kGroups * kTileBytes;
};

template <typename Config>
struct SingleWaveBarriers {
  RingBarriers<Config::kStages> ring;

  // Of the first stages, and of all else; each by one thread.
  __device__ void InitFirst() {
    InitFirstStages(ring, Config::kIssuers);
    FenceBarrierInit();
  }
  __device__ void Init() {
    InitOtherStages(ring, Config::kIssuers, Config::kGroups * kWarpgroup / 32);
    FenceBarrierInit();
  }
};

// Multiplies `count` stages, by one warpgroup.
template <typename Config>
__device__ __forceinline__ void MultiplySingleWave(
    float (&acc)[Config::kM / 2], int count, uint32_t input, uint32_t weights,
    RingBarriers<Config::kStages>& barriers) {
  RingPosition<Config::kStages> at;
  const ReleaseOwn release;
  int previous = -1;
  for (int i = 0; i < count; ++i) {
    BarrierWait(SharedAddress(&barriers.full[at.stage]), at.round);
    const int offset = at.stage * Config::kStageBytes;
    const uint64_t a = Descriptor(weights + offset);
    const uint64_t b = Descriptor(input + offset);
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      WgmmaColumns<typename Config::T, Config::kWeights, Config::kM>(
          acc, a + k * kReductionStep<Config::kWeights>,
          b + k * kReductionStep<Contiguous::kReduction>);
    }
    WgmmaCommit();
    WgmmaWait<1>();
    if (previous >= 0) release(SharedAddress(&barriers.empty[previous]));
    previous = at.stage;
    at.Advance();
  }
  WgmmaWait<0>();
}

// Of the first sub-problem, number `tile` of the launch. What problem.n_tiles
// counts comes first, as blocks that begin side by side share what they read
// from the L2: tiles of channels or, where those are fewer than it takes for
// all channels, of pixels.
template <typename Config, int kSubs>
__device__ __forceinline__ ConvTile
SingleWaveTile(const ConvProblem<kSubs>& problem, int tile) {
  const int inner = problem.n_tiles;
  const int other = tile / problem.n_tiles, one = tile - other * inner;
  const bool channels = inner * Config::kN >= problem.channels;
  const int row = channels ? other : one;
  const int channel = (channels ? one : other) * Config::kN;
  const ConvSubproblem& sub = problem.sub[0];
  ConvTile at = {&sub, row * Config::kM, channel, sub.iterations,
                 0,    channel,          0,       {0, sub.taps_d.count}};
  if (__builtin_expect(problem.volumes, false)) {
    LeaveOutPadding(Config::kM, &at);
  }
  return at;
}

// Stores a box of 64 channels. By one thread.
template <int kSubs>
__device__ __forceinline__ void StoreColumns(const ConvSubproblem& sub,
                                             uint32_t buffer, int pixel,
                                             int channel) {
  if constexpr (kSubs == 1) {
    StoreTile2(sub.output, buffer, channel, pixel);
  } else {
    const PixelPlace at = OutputPixel(sub, pixel);
    StoreIm2col(sub.output, buffer, channel, at.w, at.h, at.image);
  }
}

// Several sub-problems: those of a stride, of which the first alone has taps;
// the others are zeros.
template <typename Config, int kSubs, typename EpilogueT>
__global__ void __launch_bounds__(Config::kThreads, 1)
    SingleWaveKernel(const __grid_constant__ ConvProblem<kSubs> problem,
                     const __grid_constant__ EpilogueT epilogue) {
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& barriers = *reinterpret_cast<SingleWaveBarriers<Config>*>(
      memory + Config::kBarrierOffset);
  const uint32_t shared = SharedAddress(memory);
  // As in ConvKernel.
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  constexpr int kInputWarp = Config::kGroups * kWarpgroup / 32;
  if (warp >= kInputWarp) {
    if (warp == kInputWarp) {
      if (ElectOne()) barriers.InitFirst();
      NamedBarrierArrive(kFirstBarrier, Config::kThreads);
    }
    const ConvTile tile = SingleWaveTile<Config>(problem, blockIdx.x);
    ByAxes<Config>(problem, [&](auto volumes) {
      const StageWalk<decltype(volumes)::value> walk(tile);
      RingPosition<Config::kStages> at;
      if (warp == kInputWarp) {
        if (ElectOne()) {
          CopyFirstStages<Config>(problem, tile, walk, tile.iterations, shared,
                                  barriers.ring);
        }
        NamedBarrier(kRestBarrier, 64);
        CopyStages<Config, Operand::kInput>(problem, tile, walk, kFirstStages,
                                            tile.iterations, shared,
                                            barriers.ring, at);
      } else {
        NamedBarrier(kFirstBarrier, Config::kThreads);
        CopyStages<Config, Operand::kWeights>(problem, tile, walk, kFirstStages,
                                              tile.iterations, shared,
                                              barriers.ring, at);
      }
    });
    return;
  }
  if (threadIdx.x == 32) {
    PrefetchMap(problem.sub[0].input);
    PrefetchMap(problem.weights);
    PrefetchMap(problem.sub[0].output);
  }
  if (warp == 0) {
    if (ElectOne()) barriers.Init();
    NamedBarrierArrive(kRestBarrier, 64);
  }
  const ConvTile tile = SingleWaveTile<Config>(problem, blockIdx.x);
  const int group = warp / (kWarpgroup / 32);
  const int channel = tile.channel + 64 * group;
  float acc[Config::kM / 2];
  BeginColumns<typename Config::T>(epilogue, channel, problem.channels, acc);
  NamedBarrier(kFirstBarrier, Config::kThreads);
  const uint32_t buffer =
      shared + Config::kTileOffset + group * Config::kTileBytes;
  const bool stores =
      threadIdx.x % kWarpgroup == 0 && channel < problem.channels;
  if constexpr (kSubs > 1) {
    // Of zeros, which are stored while the first stages come.
    uint8_t* const zeros =
        memory + Config::kTileOffset + group * Config::kTileBytes;
    for (int i = threadIdx.x % kWarpgroup; i < Config::kTileBytes / 16;
         i += kWarpgroup) {
      reinterpret_cast<uint4*>(zeros)[i] = uint4{};
    }
    FenceAsyncProxy();
    NamedBarrier(kRestBarrier + 1 + group, kWarpgroup);
    if (stores) {
      for (int i = 1; i < problem.subs; ++i) {
        if (tile.pixel < problem.sub[i].pixels) {
          StoreColumns<kSubs>(problem.sub[i], buffer, tile.pixel, channel);
        }
      }
      StoreCommit();
    }
  }
  MultiplySingleWave<Config>(acc, tile.iterations, shared,
                             shared + Config::kInputBytes + group * kBoxBytes,
                             barriers.ring);
  if constexpr (kSubs > 1) {
    if (stores) StoreWaitRead<0>();
    NamedBarrier(kRestBarrier + 1 + group, kWarpgroup);
  }
  WriteColumns<typename Config::T>(epilogue, acc, buffer,
                                   [](int pixel) { return pixel; });
  if constexpr (EpilogueT::kPlain) {
    WriteColumnBitmask<typename Config::T>(
        epilogue, buffer, tile.pixel,
        min(Config::kM, tile.sub->pixels - tile.pixel), channel,
        problem.channels);
  }
  FenceAsyncProxy();
  NamedBarrier(kRestBarrier + 1 + group, kWarpgroup);
  if (stores) {
    StoreColumns<kSubs>(*tile.sub, buffer, tile.pixel, channel);
    StoreCommit();
    StoreWaitRead<0>();  // shared memory must outlive the store that reads it
  }
}

}  // namespace jax_convbatch::hopper
