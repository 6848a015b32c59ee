// SPDX-License-Identifier: Apache-2.0
// dgrad where the filter is as large as its stride (patch embeddings): one
// product of dy and the filter, whose columns are what a patch of dx is made
// of. A tile of 128 patches has whole filter rows as columns; its warpgroups
// lay what they multiplied out in shared memory as it lies in dx, where the
// patches of a row are next to each other, so that bulk copies of whole runs
// store it.
//
// Filters of few output channels stay in shared memory.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_PATCHES_PATCH_DGRAD_CUH_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_PATCHES_PATCH_DGRAD_CUH_

#include "cuda/sm90/copy/pipeline.cuh"
#include "cuda/sm90/kernels/patches/patch_problem.h"

namespace jax_convbatch::hopper {

inline constexpr int kPatchM = 128;  // of a tile
// Steps of the sum for which a resident filter has room.
inline constexpr int kMaxPatchSteps = 4;

// Tiles of kColumns columns. kResident: all steps of the filter have room
// beside the ring. Where a tile takes longer to come and to go than to be
// multiplied, two blocks share an SM.
template <typename T_, int kColumns_, bool kResident_>
struct PatchConfig {
  using T = T_;
  static constexpr int kColumns = kColumns_;
  static constexpr bool kResident = kResident_;
  static constexpr int kBlocks = kResident ? 2 : 1;  // of an SM
  static constexpr int kBytesA = kPatchM * 128, kBytesB = kColumns * 128;
  static constexpr int kStageBytes = kBytesA + (kResident ? 0 : kBytesB);
  static constexpr int kFilterBytes = kResident ? kMaxPatchSteps * kBytesB : 0;
  // A warpgroup's tile on its way out.
  static constexpr int kTileBytes = kWarpgroup / 2 * kColumns * 2;
  static constexpr int kBuffers = kColumns > 64 ? 1 : 2;
  static constexpr int kOutBytes = kConsumers * kBuffers * kTileBytes;
  static constexpr int kStages =
      (226 * 1024 / kBlocks - kFilterBytes - kOutBytes) / kStageBytes;
  static_assert(kStages >= 3);
};

template <typename Config>
struct PatchShared {
  alignas(1024) uint8_t ring[Config::kStages * Config::kStageBytes];
  alignas(1024) uint8_t filter[Config::kResident ? Config::kFilterBytes : 16];
  alignas(16) uint8_t out[Config::kOutBytes];
  RingBarriers<Config::kStages> barriers;
  uint64_t filter_full;
};

// Bytes from shared to global memory, both aligned to 16.
__device__ __forceinline__ void StoreBytes(void* to, uint32_t from,
                                           uint32_t bytes) {
  asm volatile(
      "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
      "r"(from), "r"(bytes)
      : "memory");
}

// By one thread. A resident filter is that of one group of tiles: there is no
// other.
template <typename Config>
__device__ __forceinline__ void LoadPatches(const PatchProblem& problem,
                                            PatchShared<Config>& shared) {
  RingPosition<Config::kStages> at;
  const uint32_t ring = SharedAddress(shared.ring);
  if constexpr (Config::kResident) {
    const uint32_t full = SharedAddress(&shared.filter_full);
    BarrierArriveExpect(full, problem.steps * Config::kBytesB);
    for (int k = 0; k < problem.steps; ++k) {
      LoadTile2(SharedAddress(shared.filter) + k * Config::kBytesB, problem.w,
                full, k * 64, 0);
    }
  }
  for (int t = blockIdx.x; t < problem.tiles; t += gridDim.x) {
    const int m = t / problem.groups, group = t - m * problem.groups;
    for (int k = 0; k < problem.steps; ++k) {
      const uint32_t full = SharedAddress(&shared.barriers.full[at.stage]);
      const uint32_t stage = ring + at.stage * Config::kStageBytes;
      BarrierWait(SharedAddress(&shared.barriers.empty[at.stage]),
                  at.round ^ 1);
      BarrierArriveExpect(full, Config::kStageBytes);
      LoadTile2(stage, problem.dy, full, k * 64, m * kPatchM);
      if constexpr (!Config::kResident) {
        LoadTile2(stage + Config::kBytesA, problem.w, full, k * 64,
                  group * problem.together * problem.run);
      }
      at.Advance();
    }
  }
}

// A warpgroup's accumulators as [filter row][patch][S C].
template <typename T, int kHalfN>
__device__ __forceinline__ void LayOut(const float (&acc)[kHalfN], uint32_t to,
                                       int run, int columns) {
  constexpr int kPatches = kWarpgroup / 2;
  const int lane = threadIdx.x % 32;
  const int patch = threadIdx.x % kWarpgroup / 32 * 16 + lane / 4;
  const uint32_t line = to + patch * run * 2;
  int at = lane % 4 * 2, row = 0;  // in the run; its filter row
#pragma unroll
  for (int j = 0; j < kHalfN / 4; ++j) {
    while (at >= run) {
      at -= run;
      row += kPatches * run * 2;
    }
    if (j * 8 + lane % 4 * 2 < columns) {
      const uint32_t address = line + row + at * 2;
      StoreShared1(address,
                   __uint_as_float(Pack<T>(acc[4 * j], acc[4 * j + 1])));
      StoreShared1(address + 8 * run * 2,
                   __uint_as_float(Pack<T>(acc[4 * j + 2], acc[4 * j + 3])));
    }
    at += 8;
  }
}

// What a warpgroup stores: `count` patches from `patch` on, of each `rows`
// filter rows from `row` on. What lies together in dx is one copy.
struct PatchRuns {
  int patch, count, row, rows;
  int first_col, lines;
  uint32_t first_line;  // of patches

  __device__ PatchRuns(const PatchProblem& problem, int tile, int group) {
    const int m = tile / problem.groups, n = tile - m * problem.groups;
    patch = m * kPatchM + group * (kWarpgroup / 2);
    count = max(0, min(kWarpgroup / 2, problem.patches - patch));
    row = n * problem.together;
    rows = min(problem.together, problem.rows - row);
    first_line = patch;
    first_col = TakeDigit(problem.across, first_line);
    const int across = problem.across.divisor();
    lines = (first_col + count + across - 1) / across;
  }

  // By one warp.
  __device__ void Store(const PatchProblem& problem, uint32_t from) const {
    const int across = problem.across.divisor();
    const int total = count > 0 ? lines * rows : 0;
    for (int i = threadIdx.x % 32; i < total; i += 32) {
      const int r = i / lines, l = i - r * lines;
      const int begin = max(0, l * across - first_col);
      const int end = min(count, (l + 1) * across - first_col);
      const int col = l == 0 ? first_col : 0;
      const int64_t line =
          (int64_t{first_line} + l) * problem.rows + row + r;  // of dx
      const int64_t to = (line * across + col) * problem.run;
      StoreBytes(static_cast<uint16_t*>(problem.dx) + to,
                 from + (r * (kWarpgroup / 2) + begin) * problem.run * 2,
                 (end - begin) * problem.run * 2);
    }
    StoreCommit();
  }
};

template <typename Config>
__device__ __forceinline__ void MultiplyPatches(const PatchProblem& problem,
                                                int group,
                                                PatchShared<Config>& shared) {
  using T = typename Config::T;
  RingPosition<Config::kStages> at;
  const uint32_t ring = SharedAddress(shared.ring);
  const uint32_t a = ring + group * kBoxBytes;
  const uint32_t b =
      Config::kResident ? SharedAddress(shared.filter) : ring + Config::kBytesA;
  const uint32_t out =
      SharedAddress(shared.out) + group * Config::kBuffers * Config::kTileBytes;
  const bool stores = threadIdx.x % kWarpgroup < 32;
  if constexpr (Config::kResident) {
    BarrierWait(SharedAddress(&shared.filter_full), 0);
  }
  int buffer = 0;
  for (int t = blockIdx.x; t < problem.tiles; t += gridDim.x) {
    const PatchRuns runs(problem, t, group);
    float acc[1][Config::kColumns / 2];
    MultiplyStages<T, Contiguous::kReduction, Contiguous::kReduction,
                   Config::kResident>(acc, problem.steps, a, b,
                                      Config::kStageBytes, shared.barriers, at);
    if (stores) StoreWaitRead<Config::kBuffers - 1>();
    NamedBarrier(1 + group, kWarpgroup);
    const uint32_t to = out + buffer * Config::kTileBytes;
    LayOut<T>(acc[0], to, problem.run, runs.rows * problem.run);
    FenceAsyncProxy();
    NamedBarrier(1 + group, kWarpgroup);
    if (stores) runs.Store(problem, to);
    buffer = buffer + 1 == Config::kBuffers ? 0 : buffer + 1;
  }
  // Shared memory belongs to the block until all is read.
  if (stores) StoreWaitRead<0>();
}

template <typename Config>
__global__ void __launch_bounds__(kThreads, Config::kBlocks)
    PatchDgradKernel(const __grid_constant__ PatchProblem problem) {
  extern __shared__ __align__(1024) uint8_t patch_memory[];
  auto& shared = *reinterpret_cast<PatchShared<Config>*>(patch_memory);
  if (threadIdx.x == 0) {
    BarrierInit(SharedAddress(&shared.filter_full), 1);
    shared.barriers.Init(1, kConsumers * kWarpgroup / 32);
  }
  __syncthreads();
  const int warpgroup = threadIdx.x / kWarpgroup;
  if (warpgroup == 0) {
    if constexpr (Config::kBlocks == 1) GiveRegisters<kProducerRegisters>();
    if (threadIdx.x == 0) LoadPatches<Config>(problem, shared);
  } else {
    if constexpr (Config::kBlocks == 1) TakeRegisters<kConsumerRegisters>();
    MultiplyPatches<Config>(problem, warpgroup - 1, shared);
  }
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_PATCHES_PATCH_DGRAD_CUH_
