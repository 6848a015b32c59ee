// SPDX-License-Identifier: Apache-2.0
// fprop and dgrad of few outputs and long sums, as single_wave_kernel.cuh has
// tiles: a cluster of blocks forms a tile, each block a K slice of its sum.
// Each then adds all K slices, in order, for some of the tile's channels, and
// stores those: what a block sends through distributed shared memory, some 15
// bytes a cycle, is what takes longest after the products.
//
// conv_k_slices.cuh adds the same K slices in the same order.
#pragma once

#include "cuda/sm90/arch/clusters.cuh"
#include "cuda/sm90/kernels/conv/conv_split_k_kernel.cuh"
#include "cuda/sm90/kernels/single_wave/single_wave_kernel.cuh"

namespace jax_convbatch::hopper {

template <typename T_, int kPixels, int kGroups_, Contiguous kWeights_>
struct SingleWaveSplitKConfig {
  using T = T_;
  static constexpr int kM = kPixels, kGroups = kGroups_, kN = 64 * kGroups;
  static constexpr Contiguous kWeights = kWeights_;
  static constexpr int kResident = 0;
  static constexpr int kWidth = kOneGroup;
  static constexpr Sum kSum = Sum::kKSlices;
  static constexpr int kInputBytes = kM * 128;
  static constexpr int kWeightBytes = kN * 128;
  static constexpr int kStageBytes = kInputBytes + kWeightBytes;
  static constexpr int kIssuers = 2;
  static constexpr int kWarps = kGroups * kWarpgroup / 32;  // that multiply
  static constexpr int kOwn = kWarps / kSumKSlices;  // whose sums a block adds
  static constexpr int kSumBytes = kM * 16 * 4;      // of a warp
  static constexpr int kTileBytes = (kM + 15) / 16 * 16 * 16 * 2;
  static constexpr int kSent = (kSumKSlices - 1) * kOwn * kSumBytes;
  static constexpr int kStages = std::min(
      16, (kMostShared - 1024 - kSent - kOwn * kTileBytes) / kStageBytes);
  static constexpr int kThreads = kWarps * 32 + 64;
  // In shared memory: the ring, what others send, the result.
  static constexpr int kSumOffset = kStages * kStageBytes;
  static constexpr int kTileOffset = kSumOffset + kSent;
  static constexpr int kBarrierOffset = kTileOffset + kOwn * kTileBytes;
};

template <typename Config>
struct SingleWaveSplitKBarriers {
  RingBarriers<Config::kStages> ring;
  uint64_t arrived;  // what the other blocks send

  // Of the first stages, and of all else; each by one thread.
  __device__ void InitFirst() {
    InitFirstStages(ring, Config::kIssuers);
    FenceBarrierInit();
  }
  __device__ void Init() {
    InitOtherStages(ring, Config::kIssuers, Config::kWarps);
    BarrierInit(SharedAddress(&arrived), 1);
    FenceBarrierInit();
    BarrierArriveExpect(SharedAddress(&arrived), Config::kSent);
  }
};

// Adds all K slices of a warp's sums, in order; `others` are those of other
// blocks, from the lane's first on.
template <typename Config>
__device__ __forceinline__ void AddWarpKSlices(float (&acc)[Config::kM / 2],
                                               int rank, uint32_t others) {
#pragma unroll
  for (int i = 0; i < Config::kM / 8; ++i) {
    float* v = &acc[4 * i];
    const float4 own = make_float4(v[0], v[1], v[2], v[3]);
    float4 other[kSumKSlices - 1];
#pragma unroll
    for (int j = 0; j < kSumKSlices - 1; ++j) {
      other[j] =
          LoadShared4(others + j * Config::kOwn * Config::kSumBytes + i * 512);
    }
    float4 sum = rank == 0 ? own : other[0];
#pragma unroll
    for (int j = 1; j < kSumKSlices; ++j) {
      const float4 next = j == rank  ? own
                          : j > rank ? other[j - 1]
                                     : other[j % (kSumKSlices - 1)];
      sum.x += next.x;
      sum.y += next.y;
      sum.z += next.z;
      sum.w += next.w;
    }
    v[0] = sum.x, v[1] = sum.y, v[2] = sum.z, v[3] = sum.w;
  }
}

// Stores the 16 channels of a warp, 32 bytes a pixel.
template <typename Config>
__device__ __forceinline__ void StoreWarpColumns(
    const float (&acc)[Config::kM / 2], uint32_t buffer,
    const ConvSubproblem& sub, int pixel, int channel, int channels) {
  using T = typename Config::T;
  constexpr int kEights = Config::kM / 8;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < kEights; j += 2) {
    const int to = j * 8 + lane / 16 * 8 + lane % 8;
    const float* v = &acc[4 * j];
    const float* w = &acc[4 * (j + 1 < kEights ? j + 1 : j)];
    StoreMatrix4Transposed(buffer + to * 32 + lane / 8 % 2 * 16,
                           Pack<T>(v[0], v[1]), Pack<T>(v[2], v[3]),
                           Pack<T>(w[0], w[1]), Pack<T>(w[2], w[3]));
  }
  __syncwarp();
  const int k = channel + lane % 2 * 8;
  if (k >= channels) return;
#pragma unroll
  for (int p = lane / 2; p < Config::kM; p += 16) {
    if (pixel + p >= sub.pixels) return;
    *reinterpret_cast<float4*>(static_cast<T*>(sub.output_data) +
                               (int64_t{pixel} + p) * channels + k) =
        LoadShared4(buffer + p * 32 + lane % 2 * 16);
  }
}

template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    SingleWaveSplitKKernel(const __grid_constant__ ConvProblem<1> problem,
                           const __grid_constant__ ConvKSlices k_slices) {
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& barriers = *reinterpret_cast<SingleWaveSplitKBarriers<Config>*>(
      memory + Config::kBarrierOffset);
  const uint32_t shared = SharedAddress(memory);
  const ConvSubproblem& sub = problem.sub[0];
  const int rank = blockIdx.x % kSumKSlices;
  const ConvTile tile = TileAt<Config>(problem, blockIdx.x / kSumKSlices);
  // As in ConvKernel.
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  if (warp >= Config::kWarps) {
    const ConvKSlice& k_slice = k_slices.k_slice[rank];
    RingPosition<Config::kStages> at;
    if (warp == Config::kWarps) {
      if (ElectOne()) barriers.InitFirst();
      NamedBarrierArrive(kFirstBarrier, Config::kThreads);
      WithKSliceWalk<Config>(problem, tile, k_slice, [&](const auto& walk) {
        if (ElectOne()) {
          CopyFirstStages<Config>(problem, tile, walk, k_slice.count, shared,
                                  barriers.ring);
        }
        NamedBarrier(kRestBarrier, 64);
        ClusterArrive();
        CopyStages<Config, Operand::kInput>(problem, tile, walk, kFirstStages,
                                            k_slice.count, shared,
                                            barriers.ring, at);
      });
    } else {
      WithKSliceWalk<Config>(problem, tile, k_slice, [&](const auto& walk) {
        NamedBarrier(kFirstBarrier, Config::kThreads);
        ClusterArrive();
        CopyStages<Config, Operand::kWeights>(problem, tile, walk, kFirstStages,
                                              k_slice.count, shared,
                                              barriers.ring, at);
      });
    }
    ClusterWait();
    return;
  }
  if (threadIdx.x == 32) {
    PrefetchMap(sub.input);
    PrefetchMap(problem.weights);
  }
  if (warp == 0) {
    if (ElectOne()) barriers.Init();
    NamedBarrierArrive(kRestBarrier, 64);
  }
  float acc[Config::kM / 2];
#pragma unroll
  for (float& sum : acc) sum = 0.0f;
  NamedBarrier(kFirstBarrier, Config::kThreads);
  ClusterArrive();
  MultiplySingleWave<Config>(
      acc, k_slices.k_slice[rank].count, shared,
      shared + Config::kInputBytes + warp / (kWarpgroup / 32) * kBoxBytes,
      barriers.ring);
  ClusterWait();  // the others' barriers stand
  const int owner = warp / Config::kOwn, own = warp % Config::kOwn;
  const uint32_t sums = shared + Config::kSumOffset + own * Config::kSumBytes +
                        threadIdx.x % 32 * 16;
  if (owner != rank) {
    const int slot = rank - (rank > owner ? 1 : 0);
    const uint32_t to =
        InCluster(sums + slot * Config::kOwn * Config::kSumBytes, owner);
    const uint32_t barrier = InCluster(SharedAddress(&barriers.arrived), owner);
#pragma unroll
    for (int i = 0; i < Config::kM / 8; ++i) {
      const float* v = &acc[4 * i];
      SendShared4(to + i * 512, barrier, make_float4(v[0], v[1], v[2], v[3]));
    }
    return;
  }
  BarrierWait(SharedAddress(&barriers.arrived), 0);
  AddWarpKSlices<Config>(acc, rank, sums);
  StoreWarpColumns<Config>(
      acc, shared + Config::kTileOffset + own * Config::kTileBytes, sub,
      tile.pixel, tile.channel + warp * 16, problem.channels);
}

}  // namespace jax_convbatch::hopper
