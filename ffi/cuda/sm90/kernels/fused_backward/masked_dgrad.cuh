// SPDX-License-Identifier: Apache-2.0
// dgrad of masked_backward.h: dx[pixel, c] = sum over k of dz[pixel, k] w[c,
// k].
//
// One thread copies stages of 128 pixels of dy and of the filter, 64 output
// channels at a time. Two warpgroups have 64 pixels each, load dy into
// registers as the multiplier takes it, and set it to zero there where relu's
// derivative is; the bitmask comes straight from memory, two stages ahead. Sums
// are added in dgrad's order. Where dz is wanted it is written over dy in its
// stage, and stored from there.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_FUSED_BACKWARD_MASKED_DGRAD_CUH_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_FUSED_BACKWARD_MASKED_DGRAD_CUH_

#include "cuda/common/dependent_launch.cuh"
#include "cuda/sm90/arch/wgmma_registers.cuh"
#include "cuda/sm90/copy/strided_pixels.cuh"
#include "cuda/sm90/epilogue/store_tile.cuh"
#include "cuda/sm90/kernels/fused_backward/masked_dy.cuh"

namespace jax_convbatch::hopper {

struct MaskedDgradProblem {
  CUtensorMap dy, w, dz;  // boxes of 128 pixels, of kN input channels
  // Of the pixels that the filter meets, then of those that get zeros.
  CUtensorMap dx[kBackwardSubproblems];
  const uint8_t* bitmask;
  int K, pixels, tiles, n_tiles;
  StridedPixels walk;
};

// kStrided: pixels of dx lie apart, with zeros between.
template <typename T_, int kN_, bool kStoresDz_, bool kStrided_>
struct MaskedDgradConfig {
  using T = T_;
  static constexpr bool kStoresDz = kStoresDz_, kStrided = kStrided_;
  static constexpr int kM = 128, kN = kN_;
  // Of dy, which is done with once it is in registers, and of the filter.
  static constexpr int kDyStages = kN == 128 ? 6 : kStrided ? 3 : 4;
  static constexpr int kStages = kN == 256 ? 3 : 5;
  static constexpr int kDyBytes = kM * 128;
  static constexpr int kFilterBytes = kN * 128;
  static constexpr int kFilterOffset = kDyStages * kDyBytes;
  static constexpr int kStoreBytes = 64 * kN * 2;  // of a warpgroup
  static constexpr int kStoreOffset = kFilterOffset + kStages * kFilterBytes;
  static constexpr int kZeroOffset = kStoreOffset + kConsumers * kStoreBytes;
  static constexpr int kSharedBytes =
      kZeroOffset + (kStrided ? kBoxBytes : 0) + 1024;
};

template <typename Config>
struct MaskedDgradBarriers {
  RingBarriers<Config::kDyStages> dy;
  RingBarriers<Config::kStages> filter;
  uint64_t written[kConsumers], free[kConsumers];  // a warpgroup's dx
  uint64_t dz[Config::kDyStages];                  // lies in the stage

  __device__ void Init() {  // by one thread
    dy.Init(1, kConsumers * kWarpgroup / 32 + Config::kStoresDz);
    filter.Init(1, kConsumers * kWarpgroup / 32);
    for (uint64_t& barrier : dz) {
      BarrierInit(SharedAddress(&barrier), kConsumers * kWarpgroup / 32);
    }
    for (int i = 0; i < kConsumers; ++i) {
      BarrierInit(SharedAddress(&written[i]), kWarpgroup / 32);
      BarrierInit(SharedAddress(&free[i]), 1);
    }
    FenceBarrierInit();
  }
};

struct MaskedTile {
  int pixel, channel;
};

template <typename Config>
__device__ __forceinline__ MaskedTile
MaskedTileAt(const MaskedDgradProblem& problem, int tile) {
  const int group = tile / problem.n_tiles;
  return {group * Config::kM, (tile - group * problem.n_tiles) * Config::kN};
}

// The zeros around a tile's pixels, of a stride: in boxes, first to last.
template <typename Config>
__device__ __forceinline__ void StoreZeros(const MaskedDgradProblem& problem,
                                           uint32_t shared, MaskedTile tile,
                                           int first, int last) {
  constexpr int kBoxes = Config::kN / 64;  // of 64 pixels
  for (int box = first; box < last; ++box) {
    const int sub = 1 + box / (2 * kBoxes);
    const int half = box / kBoxes % 2;
    if (tile.pixel + half * 64 >= problem.pixels) continue;
    const StridedPixel to(problem.walk, tile.pixel + half * 64);
    StoreIm2col(problem.dx[sub], shared + Config::kZeroOffset,
                tile.channel + box % kBoxes * 64,
                to.w + problem.walk.sub_w[sub], to.h + problem.walk.sub_h[sub],
                to.image);
  }
}

// Fetches a tile's bitmask to the L2.
__device__ __forceinline__ void PrefetchBitmask(
    const MaskedDgradProblem& problem, int pixel, int pixels) {
  const int count = min(pixels, problem.pixels - pixel);
  const int row = problem.K / 8;
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(
                   problem.bitmask + int64_t{pixel} * row),
               "r"(count * row)
               : "memory");
}

template <typename Config>
__device__ __forceinline__ void LoadMaskedWgradDy(
    const MaskedDgradProblem& problem, uint32_t shared,
    MaskedDgradBarriers<Config>& barriers) {
  RingPosition<Config::kDyStages> at;
  for (int t = blockIdx.x; t < problem.tiles; t += gridDim.x) {
    const MaskedTile tile = MaskedTileAt<Config>(problem, t);
    const int next = t + gridDim.x;
    if (next < problem.tiles) {
      PrefetchBitmask(problem, MaskedTileAt<Config>(problem, next).pixel,
                      Config::kM);
    }
    for (int k = 0; k < problem.K; k += 64) {
      const uint32_t full = SharedAddress(&barriers.dy.full[at.stage]);
      BarrierWait(SharedAddress(&barriers.dy.empty[at.stage]), at.round ^ 1);
      BarrierArriveExpect(full, Config::kDyBytes);
      LoadTile2(shared + at.stage * Config::kDyBytes, problem.dy, full, k,
                tile.pixel);
      at.Advance();
    }
  }
}

// The filter's stages; the zeros around a tile's pixels a few at a time, that
// loads need not queue behind them.
template <typename Config>
__device__ __forceinline__ void LoadMaskedFilter(
    const MaskedDgradProblem& problem, uint32_t shared,
    MaskedDgradBarriers<Config>& barriers) {
  const int zeros = (problem.walk.subs - 1) * (2 * Config::kN / 64);
  RingPosition<Config::kStages> at;
  for (int t = blockIdx.x; t < problem.tiles; t += gridDim.x) {
    const MaskedTile tile = MaskedTileAt<Config>(problem, t);
    for (int k = 0; k < problem.K; k += 64) {
      const uint32_t full = SharedAddress(&barriers.filter.full[at.stage]);
      BarrierWait(SharedAddress(&barriers.filter.empty[at.stage]),
                  at.round ^ 1);
      BarrierArriveExpect(full, Config::kFilterBytes);
      LoadTile2(
          shared + Config::kFilterOffset + at.stage * Config::kFilterBytes,
          problem.w, full, k, tile.channel);
      at.Advance();
      if constexpr (Config::kStrided) {
        StoreZeros<Config>(problem, shared, tile, zeros * k / problem.K,
                           zeros * (k + 64) / problem.K);
      }
    }
  }
  StoreCommit();
  StoreWaitRead<0>();  // shared memory must outlive the stores that read it
}

template <typename Config>
__device__ __forceinline__ void StoreMaskedDgrad(
    const MaskedDgradProblem& problem, uint32_t shared,
    MaskedDgradBarriers<Config>& barriers) {
  uint32_t round = 0;
  for (int t = blockIdx.x; t < problem.tiles; t += gridDim.x) {
    const MaskedTile tile = MaskedTileAt<Config>(problem, t);
    for (int group = 0; group < kConsumers; ++group) {
      const uint32_t from =
          shared + Config::kStoreOffset + group * Config::kStoreBytes;
      const int pixel = tile.pixel + group * 64;
      BarrierWait(SharedAddress(&barriers.written[group]), round);
      if (pixel < problem.pixels) {
        const StridedPixel to(problem.walk, pixel);
        for (int c = 0; c < Config::kN; c += 64) {
          const uint32_t box = from + c * 128;
          if constexpr (!Config::kStrided) {
            StoreTile2(problem.dx[0], box, tile.channel + c, pixel);
          } else {
            StoreIm2col(problem.dx[0], box, tile.channel + c,
                        to.w + problem.walk.sub_w[0],
                        to.h + problem.walk.sub_h[0], to.image);
          }
          // Loads should not queue behind stores.
          StoreCommit();
          StoreWaitRead<0>();
        }
      }
      BarrierArrive(SharedAddress(&barriers.free[group]));
    }
    round ^= 1;
  }
}

// By one thread. Of a tile's first channels only: the others' dz is the same.
template <typename Config>
__device__ __forceinline__ void StoreDz(const MaskedDgradProblem& problem,
                                        uint32_t shared,
                                        MaskedDgradBarriers<Config>& barriers) {
  RingPosition<Config::kDyStages> at;
  for (int t = blockIdx.x; t < problem.tiles; t += gridDim.x) {
    const MaskedTile tile = MaskedTileAt<Config>(problem, t);
    for (int k = 0; k < problem.K; k += 64) {
      BarrierWait(SharedAddress(&barriers.dz[at.stage]), at.round);
      if (tile.channel == 0) {
        StoreTile2(problem.dz, shared + at.stage * Config::kDyBytes, k,
                   tile.pixel);
        StoreCommit();
        StoreWaitRead<0>();
      }
      BarrierArrive(SharedAddress(&barriers.dy.empty[at.stage]));
      at.Advance();
    }
  }
}

template <typename Config>
__device__ __forceinline__ void ConsumeMaskedDgrad(
    const MaskedDgradProblem& problem, uint32_t shared, int group,
    MaskedDgradBarriers<Config>& barriers) {
  using T = typename Config::T;
  constexpr auto kReduction = Contiguous::kReduction;
  const int thread = threadIdx.x % kWarpgroup, lane = thread % 32;
  const int rows = thread / 32 * 16;  // of the warp
  const uint32_t own = shared + (group * 64 + rows + lane % 16) * 128;
  // Of the lane's 16 bytes in a row.
  const int swizzle = (lane / 16 ^ lane % 8) << 4;
  const int shift = 6 - lane % 4 * 2;
  const ReleaseOwn release;
  auto bitmask_at = [&](int tile, int row) {
    const int pixel = MaskedTileAt<Config>(problem, tile).pixel + group * 64 +
                      rows + lane / 4 + row;
    return reinterpret_cast<const uint4*>(
        problem.bitmask +
        int64_t{min(pixel, problem.pixels - 1)} * (problem.K / 8));
  };
  RingPosition<Config::kDyStages> at;
  RingPosition<Config::kStages> of_filter;
  const uint4 *first = bitmask_at(blockIdx.x, 0),
              *second = bitmask_at(blockIdx.x, 8);
  uint4 next_first = __ldg(first), next_second = __ldg(second);
  uint32_t round = 1;
  for (int t = blockIdx.x; t < problem.tiles; t += gridDim.x) {
    float acc[1][Config::kN / 2];
#pragma unroll
    for (float& v : acc[0]) v = 0.0f;
    uint32_t dz[2][4][4];
    int previous = -1;
    const bool writes_dz = MaskedTileAt<Config>(problem, t).channel == 0;
    auto multiply = [&](uint32_t (&a)[4][4], uint2 of_first, uint2 of_second) {
      const uint32_t dy = own + at.stage * Config::kDyBytes;
      BarrierWait(SharedAddress(&barriers.dy.full[at.stage]), at.round);
      LoadDz(a, dy, swizzle, RowBitmask(of_first.x, of_first.y, shift),
             RowBitmask(of_second.x, of_second.y, shift));
      if constexpr (Config::kStoresDz) {
        if (writes_dz) WriteDz(a, dy, swizzle);
        __syncwarp();
        release(SharedAddress(&barriers.dz[at.stage]));
      }
      const int stage = of_filter.stage;
      BarrierWait(SharedAddress(&barriers.filter.full[stage]), of_filter.round);
      const uint64_t b = Descriptor(shared + Config::kFilterOffset +
                                    stage * Config::kFilterBytes);
      WgmmaFence();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        WgmmaRegisters<T, kReduction, Config::kN>(
            acc[0], a[i], b + i * kReductionStep<kReduction>);
      }
      WgmmaCommit();
      // All of the warp's dy is in registers that are being multiplied.
      release(SharedAddress(&barriers.dy.empty[at.stage]));
      WgmmaWait<1>();
      if (previous >= 0) {
        release(SharedAddress(&barriers.filter.empty[previous]));
      }
      previous = stage;
      at.Advance();
      of_filter.Advance();
    };
    const int pairs = problem.K / 128;
    for (int pair = 1; pair <= pairs; ++pair) {
      const uint4 u = next_first, v = next_second;
      ++first, ++second;
      if (pair == pairs && t + gridDim.x < problem.tiles) {
        first = bitmask_at(t + gridDim.x, 0);
        second = bitmask_at(t + gridDim.x, 8);
      }
      if (pair < pairs || t + gridDim.x < problem.tiles) {
        next_first = __ldg(first);
        next_second = __ldg(second);
      }
      multiply(dz[0], make_uint2(u.x, u.y), make_uint2(v.x, v.y));
      multiply(dz[1], make_uint2(u.z, u.w), make_uint2(v.z, v.w));
    }
    WgmmaWait<0>();
    release(SharedAddress(&barriers.filter.empty[previous]));
    BarrierWait(SharedAddress(&barriers.free[group]), round);
    round ^= 1;
    WriteTile<T>(acc,
                 shared + Config::kStoreOffset + group * Config::kStoreBytes,
                 &barriers.written[group]);
  }
}

template <typename Config>
__global__ void __launch_bounds__(kThreads, 1)
    MaskedDgradKernel(const __grid_constant__ MaskedDgradProblem problem) {
  extern __shared__ uint8_t memory[];
  __shared__ MaskedDgradBarriers<Config> barriers;
  const uint32_t shared = (SharedAddress(memory) + 1023) & ~1023u;
  if (threadIdx.x == 0) barriers.Init();
  if (Config::kStrided) {
    for (int i = threadIdx.x * 16; i < kBoxBytes; i += kThreads * 16) {
      StoreShared4(shared + Config::kZeroOffset + i,
                   make_float4(0.0f, 0.0f, 0.0f, 0.0f));
    }
    FenceAsyncProxy();
  }
  if (threadIdx.x == 32) {
    PrefetchMap(problem.dy);
    PrefetchMap(problem.w);
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    GiveRegisters<kProducerRegisters>();
    LaunchDependents();  // which take the SMs that are done
    const int warp = threadIdx.x / 32;
    if (warp == 0 && ElectOne())
      LoadMaskedWgradDy<Config>(problem, shared, barriers);
    if (warp == 1 && ElectOne()) {
      LoadMaskedFilter<Config>(problem, shared, barriers);
    }
    if (warp == 2 && ElectOne()) {
      StoreMaskedDgrad<Config>(problem, shared, barriers);
    }
    if constexpr (Config::kStoresDz) {
      if (warp == 3 && ElectOne()) StoreDz<Config>(problem, shared, barriers);
    }
    return;
  }
  TakeRegisters<kConsumerRegisters>();
  const int group = __shfl_sync(~0u, threadIdx.x / kWarpgroup - 1, 0);
  ConsumeMaskedDgrad<Config>(problem, shared, group, barriers);
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_FUSED_BACKWARD_MASKED_DGRAD_CUH_
