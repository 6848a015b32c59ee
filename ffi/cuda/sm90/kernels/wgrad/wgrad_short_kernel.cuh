// SPDX-License-Identifier: Apache-2.0
// wgrad where a block has a few steps of one tile, and what counts is latency.
//
// One warp copies the first round of stages, in order; then each stage has a
// warp. The product is dw transposed: a warpgroup has 64 output channels by
// filter rows of the tile. Of a tile's blocks those of a cluster add their
// sums: each has some filter rows, whose sums the others send it. Where a tile
// has several clusters they leave partials, which AddWgradPartials adds.
#pragma once

#include "cuda/sm90/arch/wgmma_96.cuh"
#include "cuda/sm90/kernels/wgrad/wgrad_short_copies.cuh"

namespace jax_convbatch::hopper {

__device__ __forceinline__ int RankInCluster() {
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// The parts of a tile's sums that a block of a cluster adds.
struct WgradOwn {
  int rank, first, count;

  template <typename Config>
  __device__ static WgradOwn Of(const WgradShortProblem& problem) {
    const int rank = RankInCluster();
    const int first = First<Config>(problem, rank);
    return {rank, first, First<Config>(problem, rank + 1) - first};
  }
  template <typename Config>
  __device__ static int First(const WgradShortProblem& problem, int rank) {
    return problem.by_cluster.Divide(rank * Config::kParts + problem.cluster -
                                     1);
  }
  // Whose a part is.
  template <typename Config>
  __device__ static int RankOf(const WgradShortProblem& problem, int part) {
    return unsigned(part * problem.cluster) / Config::kParts;
  }
};

// d += a b, of 16 pixels.
template <typename Config>
__device__ __forceinline__ void MultiplySixteen(
    float (&acc)[Config::kColumns / 2], uint64_t dy, uint64_t x) {
  using T = typename Config::T;
  if constexpr (Config::kTapRow) {
    Wgmma96<T>(acc, dy, x);
  } else {
    Wgmma<T, Contiguous::kRows, Contiguous::kRows, Config::kColumns>(acc, dy,
                                                                     x);
  }
}

template <typename Config>
__device__ __forceinline__ void MultiplyShare(
    float (&acc)[Config::kColumns / 2], const typename Config::Problem& problem,
    const WgradShare& share, uint32_t dy, uint32_t x,
    RingBarriers<Config::kStages>& ring) {
#pragma unroll
  for (float& v : acc) v = 0.0f;
  const WgradSource<Config> source(problem, share);
  const ReleaseOwn release;
  const uint64_t a0 = Descriptor(dy);
  const uint64_t b0 = Config::kLine == 64 ? HalfLineDescriptor(x, Config::kXBox)
                                          : StridedDescriptor(x, Config::kXBox);
  auto step = [&](auto sixteens, int stage) {
    const uint64_t a = a0 + stage * (Config::kStageBytes >> 4);
    const uint64_t b = b0 + stage * (Config::kStageBytes >> 4);
    WgmmaFence();
#pragma unroll
    for (int j = 0; j < decltype(sixteens)::value; ++j) {
      MultiplySixteen<Config>(acc, a + j * (16 * 128 >> 4),
                              b + j * (16 * Config::kLine >> 4));
    }
    WgmmaCommit();
  };
  const int whole = share.steps - source.HasRest();
  const uint32_t full = SharedAddress(&ring.full[0]);
  const uint32_t empty = SharedAddress(&ring.empty[0]);
  uint32_t round = 0;
  // Unrolled by stages: what a step does beside its products counts.
  for (int first = 0; first < share.steps; first += Config::kStages) {
#pragma unroll
    for (int stage = 0; stage < Config::kStages; ++stage) {
      const int i = first + stage;
      if (i >= share.steps) break;
      BarrierWait(full + stage * 8, round);
      if (i < whole) {
        if (source.Skips(i)) {
          WgmmaWait<0>();
        } else {
          step(std::integral_constant<int, Config::kPixels / 16>(), stage);
        }
      } else {
        step(std::integral_constant<int, kRestPixels / 16>(), stage);
      }
      WgmmaWait<1>();
      if (i == 0) continue;
      release(empty + (stage + Config::kStages - 1) % Config::kStages * 8);
    }
    round ^= 1;
  }
  WgmmaWait<0>();
}

// Where filter rows of a tile lie in dw.
template <typename Config>
struct FilterRows {
  using T = typename Config::T;
  T* first;
  int K;
  int64_t tap;  // from a tap to the next, of tap rows

  __device__ FilterRows(const WgradShortProblem& tiles, const WgradShare& at)
      : K(tiles.K) {
    int row = at.m * tiles.tile_rows;
    if constexpr (Config::kTapRow) {
      uint32_t tap_row = at.m;
      const int c = TakeDigit(tiles.by_channel_blocks, tap_row);
      row = tap_row * 3 * tiles.C + c * Config::kChannels;
      tap = int64_t{tiles.C} * K;
    }
    first = static_cast<T*>(tiles.dw) + int64_t{row} * K + at.n * Config::kN;
  }
  // `unit`: of the 16 rows that `row` is counted from.
  __device__ T* At(int unit, int row, int k) const {
    constexpr int kUnits = Config::kChannels / 16;
    if constexpr (Config::kTapRow) {
      return first + unit / kUnits * tap +
             int64_t{unit % kUnits * 16 + row} * K + k;
    }
    return first + int64_t{unit * 16 + row} * K + k;
  }
};

// Stores the sums of a whole tile, a warpgroup 64 output channels in rows of
// 128 bytes, by way of `shared`.
template <typename Config, typename Quad>
__device__ __forceinline__ void StoreWhole(const FilterRows<Config>& rows,
                                           uint32_t shared, int group,
                                           Quad quad_of) {
  const int thread = threadIdx.x % kWarpgroup, lane = thread % 32;
  shared += group * (Config::kColumns * 128);
  // Swizzled: rows that are written at a time meet in no bank.
  auto chunk_at = [](int row, int eight) {
    return row * 128 + ((eight ^ row % 8) << 4);
  };
  const uint32_t to = shared + chunk_at(lane / 16 * 8 + lane % 8,
                                        thread / 32 * 2 + lane / 8 % 2);
#pragma unroll
  for (int i = 0; i < Config::kUnits; ++i) {
    WriteRows<typename Config::T>(to + i * 2048, quad_of(2 * i),
                                  quad_of(2 * i + 1));
  }
  NamedBarrier(2 + group, kWarpgroup);
  const uint32_t from = shared + chunk_at(thread / 8, thread % 8);
  const int unit = group % Config::kGroupsM * Config::kUnits;
  const int k = group / Config::kGroupsM * 64 + thread % 8 * 8;
  // A loop where it is longer: a block waits for its instructions.
#pragma unroll(Config::kGroups > 1 ? 1 : Config::kUnits)
  for (int i = 0; i < Config::kUnits; ++i) {
    *reinterpret_cast<float4*>(rows.At(unit + i, thread / 8, k)) =
        LoadShared4(from + i * 2048);
  }
}

// Stores a part, the sums of `unit` of the block's warp `of`, by way of the 512
// bytes of shared memory from `shared` on, which this warp alone uses.
template <typename Config>
__device__ __forceinline__ void StorePart(const FilterRows<Config>& rows,
                                          uint32_t shared, int unit, int of,
                                          const float4& first,
                                          const float4& second) {
  const int lane = threadIdx.x % 32, group = of / 4;
  auto at = [](int row, int half) {
    return row * 32 + ((half ^ row / 4 % 2) << 4);
  };
  WriteRows<typename Config::T>(
      shared + at(lane / 16 * 8 + lane % 8, lane / 8 % 2), first, second);
  __syncwarp();
  const int k = group / Config::kGroupsM * 64 + of % 4 * 16 + lane % 2 * 8;
  *reinterpret_cast<float4*>(
      rows.At(group % Config::kGroupsM * Config::kUnits + unit, lane / 2, k)) =
      LoadShared4(shared + at(lane / 2, lane % 2));
}

template <typename Config>
__device__ __forceinline__ void MultiplyAndAdd(
    const typename Config::Problem& problem, uint32_t shared,
    WgradShortShared<Config>& block) {
  constexpr int kUnits = Config::kUnits, kWarps = Config::kWarps;
  const WgradShare share(problem);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), group = warp / 4;
  const uint32_t dy = shared + group / Config::kGroupsM * Config::kDyBox;
  const uint32_t x = shared + Config::kDyBytes +
                     group % Config::kGroupsM *
                         (Config::kColumns / Config::kChannels) * Config::kXBox;
  const bool adds = problem.splits > 1;
  if (adds) ClusterWait();  // the others' barriers stand
  float acc[Config::kColumns / 2];
  MultiplyShare<Config>(acc, problem, share, dy, x, block.ring);
  auto quad = [&](int i) {
    return make_float4(acc[i * 4], acc[i * 4 + 1], acc[i * 4 + 2],
                       acc[i * 4 + 3]);
  };
  const FilterRows<Config> rows(problem, share);
  if (!adds) {
    // Nobody multiplies what will be written over.
    NamedBarrier(1, Config::kConsumed);
    return StoreWhole<Config>(rows, shared, group, quad);
  }
  const int cluster = problem.cluster;
  const WgradOwn own = WgradOwn::Of<Config>(problem);
  // Room of what one block sends.
  const int from_one = problem.by_cluster.Divide(Config::kParts + cluster - 1) *
                       Config::kPartBytes;
  const uint32_t sums = shared + Config::kStages * Config::kStageBytes +
                        kShortBarrierBytes + threadIdx.x % 32 * 16;
  const uint32_t barrier = SharedAddress(&block.sums);
#pragma unroll
  for (int i = 0; i < kUnits; ++i) {
    const int part = i * kWarps + warp;
    const int to = WgradOwn::RankOf<Config>(problem, part);
    const uint32_t slot =
        sums + own.rank * from_one +
        (part - WgradOwn::First<Config>(problem, to)) * Config::kPartBytes;
    if (to == own.rank) {
      StoreShared4(slot, quad(2 * i));
      StoreShared4(slot + 512, quad(2 * i + 1));
    } else {
      const uint32_t there = InCluster(slot, to);
      const uint32_t arrived = InCluster(barrier, to);
      SendShared4(there, arrived, quad(2 * i));
      SendShared4(there + 512, arrived, quad(2 * i + 1));
    }
  }
  // What this block's other warps have of its own parts. Nobody multiplies what
  // will be written over, either.
  NamedBarrier(1, Config::kConsumed);
  BarrierWait(barrier, 0);
  uint32_t buffer = shared + warp * (kUnits * 512);
  for (int i = warp; i < own.count; i += kWarps, buffer += 512) {
    const uint32_t from = sums + i * Config::kPartBytes;
    float4 first = LoadShared4(from), second = LoadShared4(from + 512);
#pragma unroll 4
    for (int other = 1; other < cluster; ++other) {
      const uint32_t at = from + other * from_one;
      Add(&first, LoadShared4(at));
      Add(&second, LoadShared4(at + 512));
    }
    const int unit = (own.first + i) / kWarps;
    const int of = (own.first + i) % kWarps;
    if (problem.splits == cluster) {
      StorePart<Config>(rows, buffer, unit, of, first, second);
    } else {
      const int tile = blockIdx.z * gridDim.y + blockIdx.y;
      const int of_all =
          problem.by_cluster.Divide(tile * problem.splits + share.split);
      float4* partial =
          reinterpret_cast<float4*>(problem.partials) +
          (int64_t{of_all} * Config::kQuads + 2 * unit) * Config::kConsumed +
          of * 32 + threadIdx.x % 32;
      partial[0] = first;
      partial[Config::kConsumed] = second;
    }
  }
}

template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    WgradShortKernel(const __grid_constant__ typename Config::Problem problem) {
  // All the shared memory that there is, which begins at such an address: to
  // round it up would be more for the first copy to wait for.
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& block = WgradShortShared<Config>::Of(memory);
  const uint32_t shared = SharedAddress(memory);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  const int stage = warp - Config::kConsumed / 32;
  if (stage == 0) CopyFirstRound<Config>(problem, shared, block);
  if (stage >= 0) {
    CopyLaterRounds<Config>(problem, shared, stage, block);
    LaunchDependents();
    return;
  }
  if (shared % 1024 != 0) __trap();
  const bool adds = problem.splits > 1;
  if (warp == 0 && adds && ElectOne()) {
    const uint32_t barrier = SharedAddress(&block.sums);
    BarrierInit(barrier, 1);
    FenceBarrierInit();
    BarrierArriveExpect(barrier, (problem.cluster - 1) *
                                     WgradOwn::Of<Config>(problem).count *
                                     Config::kPartBytes);
  }
  __syncwarp();
  NamedBarrier(kReadyBarrier, Config::kThreads);
  if (adds) ClusterArrive();
  MultiplyAndAdd<Config>(problem, shared, block);
}

}  // namespace jax_convbatch::hopper
