// SPDX-License-Identifier: Apache-2.0
// fprop and dgrad of few outputs and long sums: a cluster of blocks forms the
// tile, each block a K slice of its sum. The first two add all K slices, in
// order, each for half of the tile's channels, and store them: the others send
// theirs through distributed shared memory. Few tiles then fill the GPU, and of
// larger tiles each block reads less than of small ones that are not split.
//
// conv_k_slices.cuh adds the same K slices in the same order.
#pragma once

#include "cuda/sm90/kernels/conv/conv_kernel.cuh"

namespace jax_convbatch::hopper {

template <typename T_, Contiguous kWeights_>
struct SplitConfig {
  using T = T_;
  static constexpr int kM = 64, kN = 128, kStages = 7;
  static constexpr Contiguous kWeights = kWeights_;
  static constexpr int kResident = 0;
  static constexpr int kWidth = kOneGroup;
  static constexpr Sum kSum = Sum::kKSlices;
  static constexpr int kInputBytes = kM * 128;
  static constexpr int kWeightBytes = kN * 128;
  static constexpr int kStageBytes = kInputBytes + kWeightBytes;
  static constexpr int kIssuers = 2;
  static constexpr int kHalf = kN / 2;              // channels
  static constexpr int kSumBytes = kM * kHalf * 4;  // of half a tile
  static constexpr int kTileBytes = kM * kHalf * 2;
  static constexpr int kThreads = kWarpgroup + 64;
  // In shared memory: the ring, what others send, the result.
  static constexpr int kSumOffset = kStages * kStageBytes;
  static constexpr int kTileOffset = kSumOffset + (kSumKSlices - 1) * kSumBytes;
  static constexpr int kBarrierOffset = kTileOffset + kTileBytes;
};

template <typename Config>
struct SplitBarriers {
  RingBarriers<Config::kStages> ring;
  uint64_t arrived;   // what the other blocks send
  uint64_t residual;  // it is in the buffer
  uint64_t written;   // the result is

  // Of the first stages, and of all else; each by one thread.
  __device__ void InitFirst() {
    InitFirstStages(ring, Config::kIssuers);
    FenceBarrierInit();
  }
  __device__ void Init() {
    InitOtherStages(ring, Config::kIssuers, kWarpgroup / 32);
    BarrierInit(SharedAddress(&arrived), 1);
    BarrierInit(SharedAddress(&residual), 1);
    BarrierInit(SharedAddress(&written), kWarpgroup / 32);
    FenceBarrierInit();
    BarrierArriveExpect(SharedAddress(&arrived),
                        (kSumKSlices - 1) * Config::kSumBytes);
  }
};

// Calls copy(walk) with where a block's K slice begins in the sum of its tile.
template <typename Config, typename Copy>
__device__ __forceinline__ void WithKSliceWalk(const ConvProblem<1>& problem,
                                               const ConvTile& tile,
                                               const ConvKSlice& k_slice,
                                               Copy copy) {
  ByAxes<Config>(problem, [&](auto volumes) {
    StageWalk<decltype(volumes)::value> walk(tile);
    Enter(k_slice, walk);
    copy(walk);
  });
}

// Adds the K slices of half the tile, in order, where this block does; else it
// only sends. False there.
template <typename Config>
__device__ __forceinline__ bool AddKSlices(
    const float (&acc)[1][Config::kN / 2], int rank, uint32_t sums,
    uint32_t arrived, float (&sum)[1][Config::kHalf / 2]) {
  constexpr int kQuads = Config::kHalf / 8;
  ClusterWait();  // the others' barriers stand
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (half == rank) continue;
    const int slot = rank - (rank > half ? 1 : 0);
    const uint32_t to =
        InCluster(sums + slot * Config::kSumBytes + threadIdx.x * 16, half);
    const uint32_t barrier = InCluster(arrived, half);
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const float* v = &acc[0][(half * kQuads + i) * 4];
      SendShared4(to + i * kWarpgroup * 16, barrier,
                  make_float4(v[0], v[1], v[2], v[3]));
    }
  }
  if (rank >= 2) return false;
  BarrierWait(arrived, 0);
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    float* v = &sum[0][4 * i];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      v[j] = rank == 0 ? acc[0][4 * i + j] : acc[0][4 * (kQuads + i) + j];
    }
    // The first two K slices in either order.
#pragma unroll
    for (int slot = 0; slot < kSumKSlices - 1; ++slot) {
      const float4 other = LoadShared4(sums + slot * Config::kSumBytes +
                                       (i * kWarpgroup + threadIdx.x) * 16);
      v[0] += other.x;
      v[1] += other.y;
      v[2] += other.z;
      v[3] += other.w;
    }
  }
  return true;
}

template <typename Config, typename EpilogueT>
__global__ void __launch_bounds__(Config::kThreads, 1)
    ConvSplitKKernel(const __grid_constant__ ConvProblem<1> problem,
                     const __grid_constant__ ConvKSlices k_slices,
                     const __grid_constant__ EpilogueT epilogue) {
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& barriers = *reinterpret_cast<SplitBarriers<Config>*>(
      memory + Config::kBarrierOffset);
  const uint32_t shared = SharedAddress(memory);
  const int rank = blockIdx.x % kSumKSlices;
  const ConvKSlice& k_slice = k_slices.k_slice[rank];
  const ConvTile tile = TileAt<Config>(problem, blockIdx.x / kSumKSlices);
  const int channel = tile.channel + rank * Config::kHalf;  // of its half
  // As in ConvKernel.
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  constexpr int kInputWarp = kWarpgroup / 32;
  if (warp == kInputWarp) {
    if (ElectOne()) barriers.InitFirst();
    NamedBarrierArrive(kFirstBarrier, Config::kThreads);
    WithKSliceWalk<Config>(problem, tile, k_slice, [&](const auto& walk) {
      if (ElectOne()) {
        CopyFirstStages<Config>(problem, tile, walk, k_slice.count, shared,
                                barriers.ring);
      }
    });
    NamedBarrier(kRestBarrier, 64);
  } else {
    if (threadIdx.x == 32) {
      PrefetchMap(problem.sub[0].input);
      PrefetchMap(problem.weights);
      PrefetchMap(problem.sub[0].output);
    }
    if (warp == 0) {
      if (ElectOne()) barriers.Init();
      NamedBarrierArrive(kRestBarrier, 64);
    }
    NamedBarrier(kFirstBarrier, Config::kThreads);
  }
  ClusterArrive();

  if (warp >= kInputWarp) {
    WithKSliceWalk<Config>(problem, tile, k_slice, [&](const auto& walk) {
      RingPosition<Config::kStages> at;
      if (warp == kInputWarp) {
        CopyStages<Config, Operand::kInput>(problem, tile, walk, kFirstStages,
                                            k_slice.count, shared,
                                            barriers.ring, at);
      } else {
        CopyStages<Config, Operand::kWeights>(problem, tile, walk, kFirstStages,
                                              k_slice.count, shared,
                                              barriers.ring, at);
      }
    });
    ClusterWait();
    return;
  }
  const uint32_t buffer = shared + Config::kTileOffset;
  const bool stores = rank < 2 && channel < problem.channels;
  if constexpr (EpilogueT::kPresent) {
    if (epilogue.residual != nullptr && threadIdx.x == 0 && stores) {
      const uint32_t barrier = SharedAddress(&barriers.residual);
      BarrierArriveExpect(barrier, kBoxBytes);
      LoadTile2(buffer, epilogue.residual_boxes, barrier, channel, tile.pixel);
    }
  }
  float acc[1][Config::kN / 2], sum[1][Config::kHalf / 2];
  RingPosition<Config::kStages> at;
  MultiplyStages<typename Config::T, Contiguous::kReduction, Config::kWeights>(
      acc, k_slice.count, shared, shared + Config::kInputBytes,
      Config::kStageBytes, barriers.ring, at);
  if (!AddKSlices<Config>(acc, rank, shared + Config::kSumOffset,
                          SharedAddress(&barriers.arrived), sum) ||
      !stores) {
    return;
  }
  if constexpr (EpilogueT::kPresent) {
    if (epilogue.residual != nullptr) {
      BarrierWait(SharedAddress(&barriers.residual), 0);
    }
    ScaleAndAdd<typename Config::T>(epilogue, channel, problem.channels, sum);
    WriteLayerTile<typename Config::T>(
        epilogue, sum, buffer, &barriers.written,
        {tile.pixel, channel, tile.sub->pixels, problem.channels});
  } else {
    WriteTile<typename Config::T>(sum, buffer, &barriers.written);
  }
  if (threadIdx.x == 0) {
    BarrierWait(SharedAddress(&barriers.written), 0);
    StoreTile<Config::kM, Config::kHalf, true>(*tile.sub, buffer, kBoxBytes,
                                               false, tile.pixel, channel,
                                               problem.channels, false);
    StoreWaitRead<0>();
  }
}

}  // namespace jax_convbatch::hopper
