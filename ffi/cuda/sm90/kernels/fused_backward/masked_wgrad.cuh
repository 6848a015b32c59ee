// SPDX-License-Identifier: Apache-2.0
// wgrad and the bias gradient of masked_backward.h: dw[c, k] = sum over pixels
// of x[pixel, c] dz[pixel, k].
//
// A block has a tile of 128 output by 256 input channels and a run of the
// pixels. Of each stage of 64 pixels, its two warpgroups load dy's channels, 64
// each, transposed into registers, and set them to zero where relu's derivative
// is. Blocks of the first input channels add db on the way. A second kernel
// adds the runs in order.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_FUSED_BACKWARD_MASKED_WGRAD_CUH_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_FUSED_BACKWARD_MASKED_WGRAD_CUH_

#include "cuda/common/dependent_launch.cuh"
#include "cuda/sm90/arch/wgmma_registers.cuh"
#include "cuda/sm90/copy/pipeline.cuh"
#include "cuda/sm90/copy/strided_pixels.cuh"
#include "cuda/sm90/kernels/fused_backward/masked_backward.h"
#include "cuda/sm90/kernels/fused_backward/masked_dy.cuh"

namespace jax_convbatch::hopper {

struct MaskedWgradProblem {
  CUtensorMap dy, x, bitmask;  // boxes of 64 pixels; of 8 words of 16 bits
  float *partials, *db_partials;
  int C, K, steps, splits;
  int cluster;  // blocks, of consecutive runs, that add their sums: one or two
  int k_tiles, tiles;
  StridedPixels walk;
};

template <typename T_>
struct MaskedWgradConfig {
  using T = T_;
  // Of dy, which is done with once it is in registers, and of x.
  static constexpr int kDyStages = 5, kStages = 4;
  static constexpr int kDyBytes = kMaskedRows / 64 * kBoxBytes;
  static constexpr int kXBytes = kMaskedColumns / 64 * kBoxBytes;
  static constexpr int kBitmaskBytes = 64 * kMaskedRows / 8;
  static constexpr int kXOffset = kDyStages * kDyBytes;
  static constexpr int kBitmaskOffset = kXOffset + kStages * kXBytes;
  static constexpr int kSharedBytes =
      kBitmaskOffset + kDyStages * kBitmaskBytes + 1024;
};

template <typename Config>
struct MaskedWgradBarriers {
  RingBarriers<Config::kDyStages> dy;
  RingBarriers<Config::kStages> x;
};

// A block's tile, and its steps: every problem.splits-th. All blocks walk from
// the last pixels to the first: dgrad, before, read the last ones last.
struct MaskedShare {
  int tile, split, k, c, steps;

  __device__ explicit MaskedShare(const MaskedWgradProblem& problem) {
    const int number = blockIdx.x / problem.cluster;
    const int run = number / problem.tiles;
    tile = number - run * problem.tiles;
    split = run * problem.cluster + blockIdx.x % problem.cluster;
    const int column = tile / problem.k_tiles;
    k = (tile - column * problem.k_tiles) * kMaskedRows;
    c = column * kMaskedColumns;
    steps = (problem.steps - split + problem.splits - 1) / problem.splits;
  }

  // The first pixel of a step.
  __device__ int Pixel(const MaskedWgradProblem& problem, int step) const {
    return (problem.steps - 1 - split - step * problem.splits) * 64;
  }
};

template <typename Config>
__device__ __forceinline__ void LoadMaskedDy(
    const MaskedWgradProblem& problem, uint32_t shared,
    RingBarriers<Config::kDyStages>& ring) {
  const MaskedShare share(problem);
  RingPosition<Config::kDyStages> at;
  for (int step = 0; step < share.steps; ++step) {
    const int pixel = share.Pixel(problem, step);
    const uint32_t full = SharedAddress(&ring.full[at.stage]);
    BarrierWait(SharedAddress(&ring.empty[at.stage]), at.round ^ 1);
    BarrierArriveExpect(full, Config::kDyBytes + Config::kBitmaskBytes);
    LoadTile2(
        shared + Config::kBitmaskOffset + at.stage * Config::kBitmaskBytes,
        problem.bitmask, full, share.k / 16, pixel);
#pragma unroll
    for (int k = 0; k < kMaskedRows; k += 64) {
      LoadTile2(shared + at.stage * Config::kDyBytes + k * 128, problem.dy,
                full, share.k + k, pixel);
    }
    at.Advance();
  }
}

template <typename Config>
__device__ __forceinline__ void LoadMaskedX(
    const MaskedWgradProblem& problem, uint32_t shared,
    RingBarriers<Config::kStages>& ring) {
  const MaskedShare share(problem);
  RingPosition<Config::kStages> at;
  for (int step = 0; step < share.steps; ++step) {
    const int pixel = share.Pixel(problem, step);
    const uint32_t full = SharedAddress(&ring.full[at.stage]);
    const uint32_t x = shared + Config::kXOffset + at.stage * Config::kXBytes;
    BarrierWait(SharedAddress(&ring.empty[at.stage]), at.round ^ 1);
    BarrierArriveExpect(full, Config::kXBytes);
    if (problem.walk.subs > 1) {
      const StridedPixel from(problem.walk, pixel);
#pragma unroll
      for (int c = 0; c < kMaskedColumns; c += 64) {
        LoadIm2col(x + c * 128, problem.x, full, share.c + c, from.w, from.h,
                   from.image, 0, 0);
      }
    } else {
#pragma unroll
      for (int c = 0; c < kMaskedColumns; c += 64) {
        LoadTile2(x + c * 128, problem.x, full, share.c + c, pixel);
      }
    }
    at.Advance();
  }
}

template <typename Config>
__device__ __forceinline__ void ConsumeMaskedWgrad(
    const MaskedWgradProblem& problem, uint32_t shared, int group,
    MaskedWgradBarriers<Config>& barriers) {
  using T = typename Config::T;
  constexpr auto kRows = Contiguous::kRows;
  const MaskedShare share(problem);
  const int thread = threadIdx.x % kWarpgroup, lane = thread % 32;
  const int warp = thread / 32;  // has 16 output channels
  const uint32_t own = shared + group * kBoxBytes +
                       (lane / 16 * 8 + lane % 8) * 128 +
                       ((warp * 2 + lane / 8 % 2 ^ lane % 8) << 4);
  // The bitmask of the thread's first pixel: two bytes for the warp's channels.
  const uint32_t bitmask =
      shared + Config::kBitmaskOffset + lane % 4 * 32 + group * 8 + warp * 2;
  const int shift = 7 - lane / 4;
  const ReleaseOwn release;
  float acc[kMaskedColumns / 2];
#pragma unroll
  for (float& v : acc) v = 0.0f;
  // Of two channels, of the even and the odd pixels.
  float db[2][2] = {};
  const bool adds_db = share.c == 0;
  uint32_t dz[2][4][4];
  RingPosition<Config::kDyStages> at;
  RingPosition<Config::kStages> of_x;
  int previous = -1;
  auto multiply = [&](uint32_t (&a)[4][4]) {
    const uint32_t dy = own + at.stage * Config::kDyBytes;
    const uint32_t sign = bitmask + at.stage * Config::kBitmaskBytes;
    BarrierWait(SharedAddress(&barriers.dy.full[at.stage]), at.round);
    LoadDzTransposed(a, dy, sign, shift);
    if (adds_db) AddDb<T>(a, db);
    const int stage = of_x.stage;
    BarrierWait(SharedAddress(&barriers.x.full[stage]), of_x.round);
    const uint64_t b =
        Descriptor(shared + Config::kXOffset + stage * Config::kXBytes);
    WgmmaFence();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      WgmmaRegisters<T, kRows, kMaskedColumns>(acc, a[i],
                                               b + i * kReductionStep<kRows>);
    }
    WgmmaCommit();
    // All of the warp's dy is in registers that are being multiplied.
    release(SharedAddress(&barriers.dy.empty[at.stage]));
    WgmmaWait<1>();
    if (previous >= 0) release(SharedAddress(&barriers.x.empty[previous]));
    previous = stage;
    at.Advance();
    of_x.Advance();
  };
  for (int step = 0; step + 1 < share.steps; step += 2) {
    multiply(dz[0]);
    multiply(dz[1]);
  }
  if (share.steps % 2 != 0) multiply(dz[0]);
  WgmmaWait<0>();
  constexpr int kQuads = kMaskedColumns / 8, kHalf = kQuads / 2;
  float4* const partial = reinterpret_cast<float4*>(problem.partials) +
                          int64_t{blockIdx.x / problem.cluster} *
                              (kMaskedRows * kMaskedColumns / 4) +
                          group * (64 * kMaskedColumns / 4) + thread;
  auto quad = [&](int i) {
    return make_float4(acc[i * 4], acc[i * 4 + 1], acc[i * 4 + 2],
                       acc[i * 4 + 3]);
  };
  if (problem.cluster == 1) {
#pragma unroll
    for (int i = 0; i < kQuads; ++i) partial[i * kWarpgroup] = quad(i);
  } else {
    // Each adds one half of the columns, and sends the other.
    const int rank = blockIdx.x % 2;
    const uint32_t slot = shared + (group * kWarpgroup + thread) * 16;
    constexpr int kStep = kConsumers * kWarpgroup * 16;
    NamedBarrier(1, kConsumers * kWarpgroup);  // all have multiplied
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      StoreShared4(slot + i * kStep, rank == 0 ? quad(kHalf + i) : quad(i));
    }
    ClusterBarrier();
    float4* const to = partial + rank * kHalf * kWarpgroup;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float4 own = rank == 0 ? quad(i) : quad(kHalf + i);
      const float4 v = LoadClusterShared(slot + i * kStep, 1 - rank);
      to[i * kWarpgroup] =
          make_float4(own.x + v.x, own.y + v.y, own.z + v.z, own.w + v.w);
    }
    ClusterBarrier<false>();  // the other may still read
  }
  if (!adds_db) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = DbOfFour(db[half]);
    if (lane % 4 != 0) continue;
    problem.db_partials[int64_t{share.split} * problem.K + share.k +
                        group * 64 + warp * 16 + half * 8 + lane / 4] = sum;
  }
}

template <typename Config>
__global__ void __launch_bounds__(kThreads, 1)
    MaskedWgradKernel(const __grid_constant__ MaskedWgradProblem problem) {
  extern __shared__ uint8_t memory[];
  __shared__ MaskedWgradBarriers<Config> barriers;
  const uint32_t shared = (SharedAddress(memory) + 1023) & ~1023u;
  if (threadIdx.x == 0) {
    barriers.dy.Init(1, kConsumers * kWarpgroup / 32);
    barriers.x.Init(1, kConsumers * kWarpgroup / 32);
  }
  if (threadIdx.x == 32) {
    PrefetchMap(problem.dy);
    PrefetchMap(problem.x);
    PrefetchMap(problem.bitmask);
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    GiveRegisters<kProducerRegisters>();
    const int warp = threadIdx.x / 32;
    if (warp == 0 && ElectOne()) {
      LoadMaskedDy<Config>(problem, shared, barriers.dy);
    }
    if (warp == 1 && ElectOne()) {
      LoadMaskedX<Config>(problem, shared, barriers.x);
    }
    __syncwarp();
    LaunchDependents();
    // Nothing here needs dgrad's result, but what follows may.
    WaitForPrimary();
    if (problem.cluster > 1) {
      ClusterBarrier<false>();
      ClusterBarrier<false>();
    }
    return;
  }
  TakeRegisters<kConsumerRegisters>();
  const int group = __shfl_sync(~0u, threadIdx.x / kWarpgroup - 1, 0);
  ConsumeMaskedWgrad<Config>(problem, shared, group, barriers);
}

// Blocks of AddMaskedPartials: of dw, a quad of each thread of a warpgroup.
inline constexpr int kMaskedQuads =
    kMaskedRows * kMaskedColumns / 4 / kWarpgroup;

template <typename T>
__global__ void __launch_bounds__(kWarpgroup)
    AddMaskedPartials(const __grid_constant__ MaskedWgradProblem problem,
                      T* __restrict__ dw, T* __restrict__ db) {
  constexpr int kBatch = 16;
  __shared__ __align__(16) T rows[8][64];
  const int thread = threadIdx.x;
  const int tile = blockIdx.x / kMaskedQuads;
  WaitForPrimary();
  if (tile == problem.tiles) {
    const int k = (blockIdx.x - tile * kMaskedQuads) * kWarpgroup + thread;
    float sum = 0.0f;
    for (int i = 0; i < problem.splits; ++i) {
      sum += problem.db_partials[int64_t{i} * problem.K + k];
    }
    db[k] = static_cast<T>(sum);
    return;
  }
  const int64_t stride =
      int64_t{problem.tiles} * (kMaskedRows * kMaskedColumns / 4);
  const float4* from = reinterpret_cast<const float4*>(problem.partials) +
                       int64_t{blockIdx.x} * kWarpgroup + thread;
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  const int partials = problem.splits / problem.cluster;
  for (int first = 0; first < partials; first += kBatch) {
    float4 v[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i < partials) v[i] = from[(first + i) * stride];
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i >= partials) continue;
      sum.x += v[i].x, sum.y += v[i].y, sum.z += v[i].z, sum.w += v[i].w;
    }
  }
  const int lane = thread % 32, k = thread / 32 * 16 + lane / 4;
  const int c = lane % 4 * 2;
  rows[c][k] = static_cast<T>(sum.x);
  rows[c + 1][k] = static_cast<T>(sum.y);
  rows[c][k + 8] = static_cast<T>(sum.z);
  rows[c + 1][k + 8] = static_cast<T>(sum.w);
  __syncthreads();
  if (thread >= 64) return;
  const int in_tile = blockIdx.x - tile * kMaskedQuads;
  constexpr int kOfGroup = kMaskedColumns / 8;
  const int column = tile / problem.k_tiles;
  const int64_t row =
      column * kMaskedColumns + in_tile % kOfGroup * 8 + thread / 8;
  const int to = (tile - column * problem.k_tiles) * kMaskedRows +
                 in_tile / kOfGroup * 64 + thread % 8 * 8;
  *reinterpret_cast<uint4*>(dw + row * problem.K + to) =
      *reinterpret_cast<const uint4*>(&rows[thread / 8][thread % 8 * 8]);
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_FUSED_BACKWARD_MASKED_WGRAD_CUH_
