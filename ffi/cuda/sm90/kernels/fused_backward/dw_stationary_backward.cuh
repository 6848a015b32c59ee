// SPDX-License-Identifier: Apache-2.0
// The kernels of fused_backward.h.
//
// A block has a slice of the input channels and all output channels, and goes
// through tiles of 64 pixels. Of a tile that TMA has brought, its two
// multiplying warpgroups set dy to zero where relu's derivative is, add db on
// the way, multiply dz by x for dw and by the filter, which stays in shared
// memory, for dx, and write dx over x. They take tiles in turns, each with sums
// of its own, or share each tile where dw is too large for one. A second kernel
// adds the blocks' sums in order.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_FUSED_BACKWARD_DW_STATIONARY_BACKWARD_CUH_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_FUSED_BACKWARD_DW_STATIONARY_BACKWARD_CUH_

#include "cuda/common/dependent_launch.cuh"
#include "cuda/common/relu_bitmask.cuh"
#include "cuda/sm90/arch/bulk_copy.cuh"
#include "cuda/sm90/epilogue/epilogue.cuh"
#include "cuda/sm90/epilogue/store_tile.cuh"
#include "cuda/sm90/kernels/fused_backward/dw_stationary_sums.cuh"

namespace jax_convbatch::hopper {

template <typename Config>
struct alignas(8) DwStationaryBarriers {
  // A stage is full, its dx (and dz) are written, all of it has been read.
  uint64_t full[Config::kStages], written[Config::kStages],
      empty[Config::kStages];
  uint64_t filter;

  __device__ void Init() {  // by one thread
    for (int i = 0; i < Config::kStages; ++i) {
      BarrierInit(SharedAddress(&full[i]), 1);
      BarrierInit(SharedAddress(&written[i]), 4 * Config::kCBoxes);
      BarrierInit(SharedAddress(&empty[i]), 1);
    }
    BarrierInit(SharedAddress(&filter), 1);
    FenceBarrierInit();
  }
};

__device__ __forceinline__ uint32_t LoadSharedByte(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}

// A block's shared memory: a box of zeros, the filter, the ring, the bitmask.
template <typename Config>
struct DwStationaryShared {
  uint32_t zeros, filter;

  __device__ explicit DwStationaryShared(const void* memory)
      : zeros((SharedAddress(memory) + 1023) & ~1023u),
        filter(zeros + kBoxBytes) {}

  __device__ uint32_t Stage(int stage) const {
    return filter + Config::kFilterBytes + stage * Config::kStageBytes;
  }
  __device__ uint32_t BitmaskAt(int stage) const {
    return Stage(Config::kStages) + stage * Config::kBitmaskBytes;
  }
};

template <typename Config>
__device__ __forceinline__ void LoadTiles(
    const DwStationaryProblem& problem,
    const DwStationaryShared<Config>& shared,
    DwStationaryBarriers<Config>& barriers) {
  const uint32_t filter = SharedAddress(&barriers.filter);
  const int channel = problem.Slice() * Config::kC;
  BarrierArriveExpect(filter, Config::kFilterBytes);
  for (int k = 0; k < Config::kKBoxes; ++k) {
    for (int c = 0; c < Config::kCBoxes; ++c) {
      const int box = k * Config::kCBoxes + c;
      LoadTile2(shared.filter + box * kBoxBytes, problem.w, filter, k * 64,
                channel + c * 64);
    }
  }
  RingPosition<Config::kStages> at;
  for (int tile = problem.FirstTile(); tile < problem.tiles;
       tile += problem.blocks) {
    const int pixel = tile * kBackwardPixels;
    const uint32_t full = SharedAddress(&barriers.full[at.stage]);
    BarrierWait(SharedAddress(&barriers.empty[at.stage]), at.round ^ 1);
    const int bitmask_bytes =
        min(kBackwardPixels, problem.pixels - pixel) * (Config::kK / 8);
    BarrierArriveExpect(full, Config::kStageBytes + bitmask_bytes);
    LoadBytes(shared.BitmaskAt(at.stage),
              problem.bitmask + int64_t{tile} * Config::kBitmaskBytes, full,
              bitmask_bytes);
    const uint32_t dy = shared.Stage(at.stage);
#pragma unroll
    for (int k = 0; k < Config::kKBoxes; ++k) {
      LoadTile2(dy + k * kBoxBytes, problem.dy, full, k * 64, pixel);
    }
    const uint32_t x = dy + Config::kDyBytes;
    if (problem.Strided()) {
      const StridedPixel from(problem.walk, pixel);
      for (int c = 0; c < Config::kCBoxes; ++c) {
        LoadIm2col(x + c * kBoxBytes, problem.x, full, channel + c * 64, from.w,
                   from.h, from.image, 0, 0);
      }
    } else {
#pragma unroll
      for (int c = 0; c < Config::kCBoxes; ++c) {
        LoadTile2(x + c * kBoxBytes, problem.x, full, channel + c * 64, pixel);
      }
    }
    at.Advance();
  }
}

template <typename Config>
__device__ __forceinline__ void StoreTiles(
    const DwStationaryProblem& problem,
    const DwStationaryShared<Config>& shared,
    DwStationaryBarriers<Config>& barriers) {
  const int channel = problem.Slice() * Config::kC;
  RingPosition<Config::kStages> at;
  for (int tile = problem.FirstTile(); tile < problem.tiles;
       tile += problem.blocks) {
    const int pixel = tile * kBackwardPixels;
    const uint32_t dz = shared.Stage(at.stage);
    BarrierWait(SharedAddress(&barriers.written[at.stage]), at.round);
    const uint32_t dx = dz + Config::kDyBytes;
    if (problem.Strided()) {
      const StridedPixel to(problem.walk, pixel);
      for (int sub = 0; sub < problem.walk.subs; ++sub) {
        for (int c = 0; c < Config::kCBoxes; ++c) {
          StoreIm2col(problem.dx[sub],
                      sub == 0 ? dx + c * kBoxBytes : shared.zeros,
                      channel + c * 64, to.w + problem.walk.sub_w[sub],
                      to.h + problem.walk.sub_h[sub], to.image);
        }
      }
    } else {
#pragma unroll
      for (int c = 0; c < Config::kCBoxes; ++c) {
        StoreTile2(problem.dx[0], dx + c * kBoxBytes, channel + c * 64, pixel);
      }
    }
    if (problem.stores_dz && channel == 0) {
#pragma unroll
      for (int k = 0; k < Config::kKBoxes; ++k) {
        StoreTile2(problem.dz, dz + k * kBoxBytes, k * 64, pixel);
      }
    }
    StoreCommit();
    StoreWaitRead<0>();
    BarrierArrive(SharedAddress(&barriers.empty[at.stage]));
    at.Advance();
  }
}

// Makes dz of dy, in place, by kMaskThreads. A thread has eight channels of
// every kTeams-th pixel.
template <typename Config>
__device__ __forceinline__ void MaskTile(uint32_t dy, uint32_t bitmask,
                                         int thread, float (&db)[8]) {
  const int chunk = thread % Config::kChunks, team = thread / Config::kChunks;
  const uint32_t box = dy + chunk / 8 * kBoxBytes;
  const uint32_t bits = bitmask + chunk;
#pragma unroll 4
  for (int row = team; row < kBackwardPixels; row += Config::kTeams) {
    const uint32_t at = box + row * 128 + ((chunk % 8 ^ row % 8) << 4);
    const uint32_t sign = LoadSharedByte(bits + row * Config::kChunks);
    const float4 eight = LoadShared4(at);
    uint32_t v[4] = {__float_as_uint(eight.x), __float_as_uint(eight.y),
                     __float_as_uint(eight.z), __float_as_uint(eight.w)};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[i] &= ReluMask<2>(sign, i);
      const float2 pair = Unpack<typename Config::T>(v[i]);
      db[2 * i] += pair.x;
      db[2 * i + 1] += pair.y;
    }
    StoreShared4(at, make_float4(__uint_as_float(v[0]), __uint_as_float(v[1]),
                                 __uint_as_float(v[2]), __uint_as_float(v[3])));
  }
}

template <typename Config>
__device__ __forceinline__ void MultiplyTiles(
    const DwStationaryProblem& problem,
    const DwStationaryShared<Config>& shared,
    DwStationaryBarriers<Config>& barriers, int group, int thread,
    float (&dw)[Config::kRowBoxes][Config::kN / 2], float (&db)[8]) {
  using T = typename Config::T;
  constexpr auto kRows = Contiguous::kRows;
  constexpr auto kReduction = Contiguous::kReduction;
  constexpr bool kShared = Config::kShared, kHalvesK = Config::kHalvesK;
  constexpr int kTurns = kConsumers / Config::kHalves;
  const int turn = kShared ? 0 : group;
  // A warpgroup's own among the boxes of x and of dz.
  const int own_c = kShared && !kHalvesK ? group * Config::kRowBoxes : 0;
  const int own_k = kHalvesK ? group * (Config::kN / 64) : 0;
  const int masker = (kShared ? group * kWarpgroup : 0) + thread;
  int next = 0;  // of kHalvesK, who forms dx
  BarrierWait(SharedAddress(&barriers.filter), 0);
  RingPosition<Config::kStages> at;
  at.Skip(turn);
  for (int tile = problem.FirstTile() + turn * problem.blocks;
       tile < problem.tiles; tile += kTurns * problem.blocks) {
    const uint32_t dz = shared.Stage(at.stage), x = dz + Config::kDyBytes;
    uint64_t* const written = &barriers.written[at.stage];
    BarrierWait(SharedAddress(&barriers.full[at.stage]), at.round);
    MaskTile<Config>(dz, shared.BitmaskAt(at.stage), masker, db);
    FenceAsyncProxy();
    NamedBarrier(1 + turn, Config::kMaskThreads);
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int m = 0; m < Config::kRowBoxes; ++m) {
        Wgmma<T, kRows, kRows, Config::kN>(
            dw[m],
            Descriptor(x + (own_c + m) * kBoxBytes) + k * kReductionStep<kRows>,
            Descriptor(dz + own_k * kBoxBytes) + k * kReductionStep<kRows>);
      }
    }
    WgmmaCommit();
    if (kHalvesK && next != group) {
      WgmmaWait<0>();
      NamedBarrier(3, kConsumers * kWarpgroup);
    } else {
#pragma unroll
      for (int m = 0; m < Config::kRowBoxes; ++m) {
        const int c = own_c + m;
        float dx[1][32];
#pragma unroll
        for (float& v : dx[0]) v = 0.0f;
        WgmmaFence();
#pragma unroll
        for (int k = 0; k < Config::kKBoxes; ++k) {
          const uint32_t w =
              shared.filter + (k * Config::kCBoxes + c) * kBoxBytes;
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            Wgmma<T, kReduction, kReduction, 64>(
                dx[0],
                Descriptor(dz + k * kBoxBytes) + i * kReductionStep<kReduction>,
                Descriptor(w) + i * kReductionStep<kReduction>);
          }
        }
        WgmmaCommit();
        WgmmaWait<0>();  // x too has been multiplied
        if (kHalvesK) NamedBarrier(3, kConsumers * kWarpgroup);
        WriteTile<T>(dx, x + c * kBoxBytes, written);
      }
    }
    next ^= 1;
    at.Skip(kTurns);
  }
}

template <typename Config>
__global__ void __launch_bounds__(kThreads, 1)
    DwStationaryKernel(const __grid_constant__ DwStationaryProblem problem) {
  extern __shared__ uint8_t memory[];
  __shared__ DwStationaryBarriers<Config> barriers;
  const DwStationaryShared<Config> shared(memory);
  if (threadIdx.x == 0) barriers.Init();
  if (problem.Strided()) {
    for (int i = threadIdx.x * 16; i < kBoxBytes; i += kThreads * 16) {
      StoreShared4(shared.zeros + i, make_float4(0.0f, 0.0f, 0.0f, 0.0f));
    }
    FenceAsyncProxy();
  }
  if (threadIdx.x == 32) {
    PrefetchMap(problem.dy);
    PrefetchMap(problem.x);
    PrefetchMap(problem.w);
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    GiveRegisters<kProducerRegisters>();
    const int warp = threadIdx.x / 32;
    if (warp == 0 && ElectOne()) LoadTiles<Config>(problem, shared, barriers);
    if (warp == 1 && ElectOne()) StoreTiles<Config>(problem, shared, barriers);
    __syncwarp();
    __syncthreads();
    LaunchDependents();
    return;
  }
  TakeRegisters<kConsumerRegisters>();
  const int thread = threadIdx.x % kWarpgroup;
  const int group = __shfl_sync(~0u, threadIdx.x / kWarpgroup - 1, 0);
  float dw[Config::kRowBoxes][Config::kN / 2], db[8] = {};
#pragma unroll
  for (int m = 0; m < Config::kRowBoxes; ++m) {
#pragma unroll
    for (float& v : dw[m]) v = 0.0f;
  }
  MultiplyTiles<Config>(problem, shared, barriers, group, thread, dw, db);
  __syncthreads();  // nobody uses the ring any more
  WriteSums<Config>(problem, shared.Stage(0), group, thread, dw, db);
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_FUSED_BACKWARD_DW_STATIONARY_BACKWARD_CUH_
