// SPDX-License-Identifier: Apache-2.0
// wgrad of f32, multiplied as TF32: dw[tap, c, k] = sum over pixels of
// x[pixel + tap, c] dy[pixel, k].
//
// Both operands have channels contiguous, while the multiplier takes TF32 from
// shared memory only with the reduction, the pixels, contiguous. x is the left
// operand and goes through registers, loaded across its rows. dy is transposed
// within its stage by a warpgroup of its own. The rest is f32_wgrad.cuh's.
//
// The order of pixels within a multiplication of 8, and of rows and columns
// within a tile, is the one that keeps every access to shared memory free of
// conflicts; all sides agree on it.
#pragma once

#include "cuda/sm90/kernels/wgrad/f32_wgrad.cuh"

namespace jax_convbatch::hopper {

inline constexpr int kTransposeBarrier = 1;

template <int kM, int kN, int kStages, int kTaps = 1, int kWidth = kOneGroup>
struct WgradTf32Config : F32WgradTile<kM, kN, kStages, kTaps, kWidth> {
  using Tile = F32WgradTile<kM, kN, kStages, kTaps, kWidth>;
  // With 40 of those that load: what a block begins with, 128 x 512 or 96 x
  // 640.
  static constexpr int kDyRegisters = 56;
  static constexpr int kMultiplierRegisters = kTaps == 1 ? 208 : 128;
  static constexpr int kStageBytes = Tile::kXBytes + Tile::kDyBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes + 1024;
};

// Where four accumulators of a multiplying thread belong in dw: consecutive
// channels of one row. Null where they are not in dw.
template <typename Config>
__device__ __forceinline__ float4* PlaceOfQuadTf32(const WgradProblem& problem,
                                                   int tile, int quad,
                                                   int thread) {
  constexpr int kColumnQuads = Config::kN / 16;
  const F32TilePlace<Config> place(problem, tile);
  const TapChannel first = FirstRow<Config>(problem, place.m, thread);
  const int tap = first.tap;
  int c = first.c + quad / kColumnQuads;  // of the lane's 2 or 4 rows
  const int column = quad % kColumnQuads;
  const int k =
      place.k + column / 2 * kTf32Block + thread % 4 * 8 + column % 2 * 4;
  if constexpr (kIsNarrow<Config::kWidth>) {
    const int group = c / problem.C;
    if (k % kBoxGroups / problem.C != group) return nullptr;
    c -= group * problem.C;
  }
  if (tap >= problem.taps || c >= problem.C || k >= place.k_end) return nullptr;
  return reinterpret_cast<float4*>(static_cast<float*>(problem.dw) +
                                   (int64_t{tap} * problem.C + c) * problem.K +
                                   k);
}

template <typename Config>
__device__ __forceinline__ float4
QuadOf(const float (&acc)[Config::kRows][Config::kN / 2], int quad) {
  constexpr int kColumnQuads = Config::kN / 16;
  const int row = quad / kColumnQuads, column = quad % kColumnQuads;
  const float* a = &acc[row / 2][column / 2 * 16 + column % 2 + row % 2 * 2];
  return make_float4(a[0], a[4], a[8], a[12]);
}

// Turns the dy of every stage, 32 pixels of 32 channels a box, into 32 rows of
// pixels, in place. A thread turns blocks of 4 x 4: chunk `to` of a row holds
// pixels 8 (to / 2) + to % 2 + {0, 2, 4, 6}; rows 8 j + q hold channel 4 q + j.
template <typename Config>
__device__ __forceinline__ void TransposeDy(
    const WgradProblem& problem, uint32_t ring,
    uint64_t (&loaded)[Config::kStages],
    RingBarriers<Config::kStages>& barriers) {
  constexpr int kBlocks = Config::kN / kTf32Block * 64;
  constexpr int kEach = (kBlocks + kWarpgroup - 1) / kWarpgroup;
  const int thread = threadIdx.x % kWarpgroup;
  const int from = thread % 8, to = thread / 8 % 8;
  const uint32_t box = Config::kXBytes + thread / 64 * kTf32BoxBytes;
  uint32_t read[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int pixel = to / 2 * 8 + to % 2 + 2 * i;
    read[i] = box + pixel * 128 + ((from ^ pixel % 8) << 4);
  }
  const uint32_t write = box + from * 128 + ((to ^ from) << 4);
  const bool idle = thread >= kBlocks;
  RingPosition<Config::kStages> at;
  const int64_t steps =
      problem.Begin(blockIdx.x + 1) - problem.Begin(blockIdx.x);
  for (int64_t i = 0; i < steps; ++i) {
    const uint32_t stage = ring + at.stage * Config::kStageBytes;
    BarrierWait(SharedAddress(&loaded[at.stage]), at.round);
    float4 v[kEach][4];
    if (!idle) {
#pragma unroll
      for (int b = 0; b < kEach; ++b) {
#pragma unroll
        for (int p = 0; p < 4; ++p) {
          v[b][p] = LoadShared4(stage + read[p] + b * 2 * kTf32BoxBytes);
        }
      }
    }
    NamedBarrier(kTransposeBarrier, kWarpgroup);
    if (!idle) {
#pragma unroll
      for (int b = 0; b < kEach; ++b) {
        const float4(&p)[4] = v[b];
        const uint32_t row = stage + write + b * 2 * kTf32BoxBytes;
        StoreShared4(row, make_float4(p[0].x, p[1].x, p[2].x, p[3].x));
        StoreShared4(row + 1024, make_float4(p[0].y, p[1].y, p[2].y, p[3].y));
        StoreShared4(row + 2048, make_float4(p[0].z, p[1].z, p[2].z, p[3].z));
        StoreShared4(row + 3072, make_float4(p[0].w, p[1].w, p[2].w, p[3].w));
      }
    }
    FenceAsyncProxy();
    __syncwarp();
    if (thread % 32 == 0) {
      BarrierArrive(SharedAddress(&barriers.full[at.stage]));
    }
    at.Advance();
  }
}

template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    WgradTf32Kernel(const __grid_constant__ WgradProblem problem) {
  RunF32Wgrad<Config>(
      problem,
      [&](uint32_t ring, auto& loaded, auto& barriers) {
        TransposeDy<Config>(problem, ring, loaded, barriers);
      },
      [&](uint32_t ring, auto& barriers) {
        ConsumeF32Wgrad<Config>(
            problem, ring,
            [&](auto& acc, int steps, uint32_t x, const auto& loader,
                auto& at) {
              MultiplyFragments(acc, steps, x, ring + Config::kXBytes,
                                Config::kStageBytes, loader, barriers, at);
            },
            [](const auto& acc, int quad) { return QuadOf<Config>(acc, quad); },
            [&](int tile, int quad, int thread, float4 v) {
              float4* const to =
                  PlaceOfQuadTf32<Config>(problem, tile, quad, thread);
              if (to != nullptr) *to = v;
            });
      });
}

// As AddWgradPartials.
template <typename Config>
__global__ void __launch_bounds__(Config::kMultiplierThreads)
    AddWgradPartialsTf32(const __grid_constant__ WgradProblem problem) {
  const int tile = blockIdx.x / Config::kQuads;
  const int quad = blockIdx.x % Config::kQuads;
  float4* const to = PlaceOfQuadTf32<Config>(problem, tile, quad, threadIdx.x);
  if (to == nullptr) return;
  float4 sum;
  if (SumPartials<Config>(problem, tile, quad, &sum)) *to = sum;
}

}  // namespace jax_convbatch::hopper
