// SPDX-License-Identifier: Apache-2.0
// The kernel of single_wave_backward.h. A block has one or two warpgroups that
// multiply and a warp that copies, and one tile: of dx, 64 pixels for each
// warpgroup, or of dw, 64 output channels for each and all pixels, which the
// blocks of a cluster take in turns, 64 at a time. In both dy is the left
// operand, in registers, set to zero there where relu's derivative is.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_FUSED_BACKWARD_SINGLE_WAVE_BACKWARD_CUH_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_FUSED_BACKWARD_SINGLE_WAVE_BACKWARD_CUH_

#include "cuda/sm90/arch/wgmma_registers.cuh"
#include "cuda/sm90/kernels/fused_backward/masked_dy.cuh"
#include "cuda/sm90/kernels/fused_backward/single_wave_backward_copies.cuh"

namespace jax_convbatch::hopper {

// Adds dz times the other operand, stage by stage. load(a, step, stage's
// address) makes dz of a stage, and may use the stage until it returns.
template <typename Config, Contiguous kOther, int kN, typename Load>
__device__ __forceinline__ void MultiplySingleWaveBackward(
    float (&acc)[kN / 2], int steps, uint32_t shared,
    RingBarriers<Config::kStages>& ring, Load load) {
#pragma unroll
  for (float& v : acc) v = 0.0f;
  const ReleaseOwn release;
  RingPosition<Config::kStages> at;
  uint32_t dz[2][4][4];
  int previous = -1;
  auto multiply = [&](uint32_t (&a)[4][4], int step) {
    const uint32_t stage = shared + at.stage * Config::kStageBytes;
    BarrierWait(SharedAddress(&ring.full[at.stage]), at.round);
    load(a, step, stage);
    const uint64_t b = Descriptor(stage + Config::kOtherOffset);
    WgmmaFence();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      WgmmaRegisters<typename Config::T, kOther, kN>(
          acc, a[i], b + i * kReductionStep<kOther>);
    }
    WgmmaCommit();
    WgmmaWait<1>();
    if (previous >= 0) release(SharedAddress(&ring.empty[previous]));
    previous = at.stage;
    at.Advance();
  };
  int step = 0;
  for (; step + 1 < steps; step += 2) {
    multiply(dz[0], step);
    multiply(dz[1], step + 1);
  }
  if (step < steps) multiply(dz[0], step);
  WgmmaWait<0>();
  // Nobody multiplies what will be written over.
  NamedBarrier(1, Config::kConsumerThreads);
}

template <typename Config>
__device__ __forceinline__ void MultiplyDx(
    const SingleWaveBackwardProblem& problem, uint32_t shared, int group,
    SingleWaveBackwardShared<Config>& block) {
  using T = typename Config::T;
  SingleWaveBackwardTile<Config> tile(problem);
  tile.pixel += group * 64;
  const int thread = threadIdx.x % kWarpgroup, lane = thread % 32;
  const int rows = thread / 32 * 16;  // of the warp
  const uint32_t own = group * kBoxBytes + (rows + lane % 16) * 128;
  const int swizzle = (lane / 16 ^ lane % 8) << 4;
  const int shift = 6 - lane % 4 * 2;
  const int steps = problem.K / 64;
  // Of the thread's two rows, 128 channels at a time; the next are on the way.
  auto bitmask_at = [&](int row) {
    const int pixel = tile.pixel + rows + lane / 4 + row;
    return reinterpret_cast<const uint4*>(
        problem.bitmask_of_dx +
        int64_t{min(pixel, problem.pixels - 1)} * (problem.K / 8));
  };
  const uint4 *first = bitmask_at(0), *second = bitmask_at(8);
  uint4 next_first = __ldg(first), next_second = __ldg(second);
  uint4 of_first, of_second;
  const bool stores_dz = problem.stores_dz && tile.channel == 0;
  float acc[1][Config::kDxN / 2];
  MultiplySingleWaveBackward<Config, Contiguous::kReduction, Config::kDxN>(
      acc[0], steps, shared, block.ring,
      [&](uint32_t (&a)[4][4], int step, uint32_t stage) {
        if (step % 2 == 0) {
          of_first = next_first, of_second = next_second;
          if (step + 2 < steps) {
            next_first = __ldg(++first), next_second = __ldg(++second);
          }
          LoadDz(a, stage + own, swizzle,
                 RowBitmask(of_first.x, of_first.y, shift),
                 RowBitmask(of_second.x, of_second.y, shift));
        } else {
          LoadDz(a, stage + own, swizzle,
                 RowBitmask(of_first.z, of_first.w, shift),
                 RowBitmask(of_second.z, of_second.w, shift));
        }
        if (!stores_dz) return;
        WriteDz(a, stage + own, swizzle);
        NamedBarrier(2 + group, kWarpgroup);
        if (thread == 0 && tile.pixel < problem.pixels) {
          StoreTile2(problem.dz, stage + group * kBoxBytes, step * 64,
                     tile.pixel);
          StoreCommit();
          StoreWaitRead<0>();
        }
        __syncwarp();
      });
  const uint32_t result = shared + group * Config::kResultBytes;
#pragma unroll
  for (int j = 0; j < Config::kDxN / 8; j += 2) {
    const int row = j / 8 * 64 + rows + lane % 16;
    const int eight = j % 8 + lane / 16;
    const float* v = &acc[0][4 * j];
    StoreMatrix4(result + row * 128 + ((eight ^ row % 8) << 4),
                 Pack<T>(v[0], v[1]), Pack<T>(v[2], v[3]), Pack<T>(v[4], v[5]),
                 Pack<T>(v[6], v[7]));
  }
  FenceAsyncProxy();
  NamedBarrier(2 + group, kWarpgroup);
  if (thread != 0 || tile.pixel >= problem.pixels) return;
  const StridedPixel to(problem.walk, tile.pixel);
#pragma unroll
  for (int c = 0; c < Config::kDxN; c += 64) {
    if constexpr (Config::kStrided) {
      StoreIm2col(problem.dx[0], result + c * 128, tile.channel + c,
                  to.w + problem.walk.sub_w[0], to.h + problem.walk.sub_h[0],
                  to.image);
    } else {
      StoreTile2(problem.dx[0], result + c * 128, tile.channel + c, tile.pixel);
    }
  }
  StoreCommit();
  StoreWaitRead<0>();
}

// Sixteen input channels of dw, of two quads of each thread's sums.
template <typename T>
__device__ __forceinline__ void WriteDwRows(uint32_t to, int c,
                                            const float4& first,
                                            const float4& second) {
  const int lane = threadIdx.x % 32;
  const int row = c + lane / 16 * 8 + lane % 8;
  const int eight = threadIdx.x % kWarpgroup / 32 * 2 + lane / 8 % 2;
  StoreMatrix4Transposed(to + row * 128 + ((eight ^ lane % 8) << 4),
                         Pack<T>(first.x, first.y), Pack<T>(first.z, first.w),
                         Pack<T>(second.x, second.y),
                         Pack<T>(second.z, second.w));
}

template <typename Config>
__device__ __forceinline__ void MultiplyDw(
    const SingleWaveBackwardProblem& problem, uint32_t shared, int group,
    SingleWaveBackwardShared<Config>& block) {
  using T = typename Config::T;
  const SingleWaveBackwardShare<Config> share(problem);
  const int thread = threadIdx.x % kWarpgroup, lane = thread % 32;
  const int warp = thread / 32;  // has 16 output channels
  const uint32_t own = group * kBoxBytes + (lane / 16 * 8 + lane % 8) * 128 +
                       ((warp * 2 + lane / 8 % 2 ^ lane % 8) << 4);
  // Of the thread's first pixel: two bytes for the warp's channels.
  const uint32_t bitmask = Config::kBitmaskOffset + lane % 4 * 32 +
                           (share.k / 64 + group) % 2 * 8 + warp * 2;
  const int shift = 7 - lane / 4;
  float db[2][2] = {};
  float acc[Config::kDwN / 2];
  MultiplySingleWaveBackward<Config, Contiguous::kRows, Config::kDwN>(
      acc, share.steps, shared, block.ring,
      [&](uint32_t (&a)[4][4], int, uint32_t stage) {
        LoadDzTransposed(a, stage + own, stage + bitmask, shift);
        if (share.AddsDb()) AddDb<T>(a, db);
      });
  if (share.AddsDb()) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = DbOfFour(db[half]);
      if (lane % 4 == 0) {
        block.db[share.split][group * 64 + warp * 16 + half * 8 + lane / 4] =
            sum;
      }
    }
    NamedBarrier(2 + group, kWarpgroup);
  }
  auto quad = [&](int i) {
    return make_float4(acc[i * 4], acc[i * 4 + 1], acc[i * 4 + 2],
                       acc[i * 4 + 3]);
  };
  constexpr int kQuads = Config::kDwN / 8;
  const uint32_t result = shared + group * Config::kResultBytes;
  int first = 0;  // input channel of what this block adds
  if (problem.splits == 1) {
#pragma unroll
    for (int i = 0; i < kQuads; i += 2) {
      WriteDwRows<T>(result, i * 8, quad(i), quad(i + 1));
    }
  } else {
    // Each adds some of the tile's input channels, and sends the others.
    const int quads = kQuads / problem.splits;
    first = share.split * quads * 8;
    constexpr int kQuadBytes = Config::kConsumerThreads * 16;
    const uint32_t sums = shared + Config::kSumOffset + threadIdx.x * 16;
    const uint32_t barrier = SharedAddress(&block.sums);
    ClusterWait();  // the others' barriers stand
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const int to = i / quads;
      const uint32_t slot =
          sums + (share.split * quads + i - to * quads) * kQuadBytes;
      if (to == share.split) {
        StoreShared4(slot, quad(i));
      } else {
        SendShared4(InCluster(slot, to), InCluster(barrier, to), quad(i));
      }
    }
    if (share.AddsDb() && share.split > 0 && thread < 16) {
      const uint32_t from =
          SharedAddress(&block.db[share.split][group * 64 + thread * 4]);
      SendShared4(InCluster(from, 0), InCluster(barrier, 0), LoadShared4(from));
    }
    BarrierWait(barrier, 0);
    auto added = [&](int i) {
      float4 sum = LoadShared4(sums + i * kQuadBytes);
      for (int split = 1; split < problem.splits; ++split) {
        const float4 v = LoadShared4(sums + (split * quads + i) * kQuadBytes);
        sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
      }
      return sum;
    };
    for (int i = 0; i < quads; i += 2) {
      WriteDwRows<T>(result, i * 8, added(i), added(i + 1));
    }
  }
  FenceAsyncProxy();
  NamedBarrier(2 + group, kWarpgroup);
  if (share.AddsDb() && share.split == 0 && thread < 64) {
    const int k = group * 64 + thread;
    float sum = block.db[0][k];
    for (int split = 1; split < problem.splits; ++split) {
      sum += block.db[split][k];
    }
    static_cast<T*>(problem.db)[share.k + k] = static_cast<T>(sum);
  }
  if (thread != 0) return;
  StoreTile2(problem.dw, result, share.k + group * 64, share.c + first);
  StoreCommit();
  StoreWaitRead<0>();
}

template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocks)
    SingleWaveBackwardKernel(
        const __grid_constant__ SingleWaveBackwardProblem problem) {
  extern __shared__ uint8_t memory[];
  __shared__ SingleWaveBackwardShared<Config> block;
  const uint32_t shared = (SharedAddress(memory) + 1023) & ~1023u;
  const bool of_dx = problem.dx_begin < problem.dw_begin
                         ? blockIdx.x < problem.dw_begin
                         : blockIdx.x >= problem.dx_begin;
  // What fills a cluster up.
  if (of_dx && blockIdx.x >= problem.dx_begin + problem.dx_tiles) return;
  const bool sends = !of_dx && problem.splits > 1;
  const int group = __shfl_sync(~0u, threadIdx.x / kWarpgroup, 0);
  if (group == Config::kGroups && ElectOne()) {
    block.ring.Init(1, Config::kConsumerThreads / 32);
    LoadFirst<Config>(problem, shared, block.ring, of_dx);
    if (sends) {
      const SingleWaveBackwardShare<Config> share(problem);
      const uint32_t barrier = SharedAddress(&block.sums);
      BarrierInit(barrier, 1);
      FenceBarrierInit();
      const int of_db =
          share.AddsDb() && share.split == 0 ? Config::kGroups * 64 * 4 : 0;
      BarrierArriveExpect(
          barrier,
          (problem.splits - 1) * (Config::kSumBytes / problem.splits + of_db));
    }
  }
  if (Config::kStrided && of_dx) {
    for (int i = threadIdx.x * 16; i < kBoxBytes; i += Config::kThreads * 16) {
      StoreShared4(shared + Config::kZeroOffset + i,
                   make_float4(0.0f, 0.0f, 0.0f, 0.0f));
    }
    FenceAsyncProxy();
  }
  __syncthreads();
  if (sends) ClusterArrive();
  if (group < Config::kGroups) {
    of_dx ? MultiplyDx<Config>(problem, shared, group, block)
          : MultiplyDw<Config>(problem, shared, group, block);
  } else if (ElectOne()) {
    LoadOthers<Config>(problem, shared, block.ring, of_dx);
  }
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_FUSED_BACKWARD_SINGLE_WAVE_BACKWARD_CUH_
