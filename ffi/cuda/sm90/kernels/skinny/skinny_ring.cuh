// SPDX-License-Identifier: Apache-2.0
// wgrad of 1x1 filters of few channels, which waits for memory alone: a block
// has all of dw in registers, 16 channels of the wider operand a warp, and the
// pixels of both operands come by TMA to a ring in shared memory, as they lie.
// AddSkinny adds what the blocks leave.
//
// A stage is eight runs of pixels, each one copy of each operand. Runs begin an
// odd number of 16 bytes (of f32, 32) apart, modulo 128, and the pixels that
// are multiplied at a time are of different runs: so no access to shared memory
// meets another in a bank, however many channels there are.
#pragma once

#include "cuda/common/dependent_launch.cuh"
#include "cuda/common/floats.h"
#include "cuda/reductions/add_chunks.cuh"
#include "cuda/reductions/add_teams.cuh"
#include "cuda/reductions/load_in_order.cuh"
#include "cuda/sm90/arch/bulk_copy.cuh"
#include "cuda/sm90/arch/registers.cuh"
#include "cuda/sm90/copy/pipeline.cuh"
#include "cuda/sm90/kernels/skinny/skinny_fragments.cuh"
#include "cuda/sm90/kernels/skinny/skinny_problem.h"
#include "cuda/sm90/kernels/skinny/skinny_tiling.h"

namespace jax_convbatch::hopper {

// Pixels of a run that a multiplication takes, of 32 bytes a channel in all.
template <typename T>
inline constexpr int kSkinnyEach = 4 / sizeof(T);

using SkinnyBarriers = RingBarriers<kSkinnyStages>;

// A position in a ring of as many stages as fit.
struct SkinnyPosition {
  int stage = 0;
  uint32_t round = 0;

  __device__ void Advance(const SkinnyRingProblem& p) {
    if (++stage == p.ring) stage = 0, round ^= 1;
  }
};

// The pixels of a stage. The last one may have fewer, in shorter runs, so that
// few are past the last pixel.
template <typename T>
struct SkinnyStage {
  int64_t first;
  int there, run;

  __device__ SkinnyStage(const SkinnyRingProblem& p, int64_t stage)
      : first(stage * kSkinnyRuns * p.run),
        there(static_cast<int>(
            ::min(p.pixels - first, int64_t{kSkinnyRuns} * p.run))),
        run(p.run) {
    constexpr int kLeast = kSkinnyRuns * kSkinnyEach<T>;
    if (there < kSkinnyRuns * run) {
      run = (there + kLeast - 1) / kLeast * kSkinnyEach<T>;
    }
  }
  __device__ bool lacks_some() const { return there < kSkinnyRuns * run; }
};

// By a warp: a lane has a run of one of the operands.
template <typename T>
__device__ __forceinline__ void CopySkinnyRuns(const SkinnyRingProblem& p,
                                               uint32_t ring,
                                               SkinnyBarriers& barriers) {
  const int lane = threadIdx.x % 32, run = lane % kSkinnyRuns;
  const bool is_b = lane >= kSkinnyRuns;
  const int row = (is_b ? p.b_channels : p.a_channels) * sizeof(T);
  const auto* from = static_cast<const uint8_t*>(is_b ? p.b : p.a);
  const uint32_t to =
      ring + (is_b ? p.b_at + run * p.b_pitch : run * p.a_pitch);
  SkinnyPosition at;
  for (int64_t i = blockIdx.x; i < p.stages; i += gridDim.x, at.Advance(p)) {
    const SkinnyStage<T> stage(p, i);
    const uint32_t full = SharedAddress(&barriers.full[at.stage]);
    BarrierWait(SharedAddress(&barriers.empty[at.stage]), at.round ^ 1);
    if (lane == 0) {
      BarrierArriveExpect(
          full, stage.there * (p.a_channels + p.b_channels) * sizeof(T));
    }
    __syncwarp();
    const int pixels = ::min(stage.run, stage.there - run * stage.run);
    if (lane < 2 * kSkinnyRuns && pixels > 0) {
      LoadBytes(to + at.stage * p.stage_bytes,
                from + (stage.first + run * stage.run) * row, full,
                pixels * row);
    }
  }
}

// Zeros in place of the pixels that a stage lacks, by the warps that multiply.
template <typename T>
__device__ __forceinline__ void ZeroTheRest(const SkinnyRingProblem& p,
                                            const SkinnyStage<T>& stage,
                                            uint32_t at) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  auto zero = [&](uint32_t from, int channels) {
    const int row = channels * sizeof(T);
    for (int b = lane * 16; b < row; b += 32 * 16) {
      StoreShared4(from + b, make_float4(0, 0, 0, 0));
    }
  };
  for (int i = stage.there + warp; i < kSkinnyRuns * stage.run;
       i += p.a_blocks) {
    const int run = i / stage.run, pixel = i - run * stage.run;
    const int before_a = pixel * p.a_channels * sizeof(T);
    const int before_b = pixel * p.b_channels * sizeof(T);
    zero(at + run * p.a_pitch + before_a, p.a_channels);
    zero(at + p.b_at + run * p.b_pitch + before_b, p.b_channels);
  }
  NamedBarrier(1, p.a_blocks * 32);
}

// The first of b's channels in the n-th eight columns of a product: of f32 each
// other one of sixteen, as a lane loads two at once.
template <typename T>
__device__ __forceinline__ int FirstOfB(int n) {
  return sizeof(T) == 4 ? n / 2 * 16 + n % 2 : n * 8;
}

// The sums of a warp: 16 channels of a, by 8 kColumns of b, an even number. A
// step is a fragment's pixels, one or two of each run.
template <typename T, int kColumns>
struct SkinnySums {
  static constexpr bool kPairs = sizeof(T) == 4;
  float sums[kColumns][4] = {};

  // Where a lane's loads begin, of operand rows of so many bytes. ldmatrix
  // takes eight pixels of 16 bytes from as many runs.
  static __device__ __forceinline__ uint32_t OwnA(int pitch, int row) {
    const int lane = threadIdx.x % 32;
    if constexpr (kPairs) return lane % 4 * pitch + lane / 4 * 8;
    return lane % 8 * pitch + lane / 16 * row + lane / 8 % 2 * 16;
  }
  static __device__ __forceinline__ uint32_t OwnB(int pitch, int row) {
    const int lane = threadIdx.x % 32;
    if constexpr (kPairs) return lane % 4 * pitch + lane / 4 * 8;
    return lane % 8 * pitch + lane / 8 % 2 * row + lane / 16 * 16;
  }

  __device__ __forceinline__ void Step(const SkinnyRingProblem& p, uint32_t a,
                                       uint32_t b) {
    if constexpr (kPairs) {
      // Two neighbouring channels a lane.
      const float2 low = LoadShared2(a), high = LoadShared2(a + 4 * p.a_pitch);
      const uint32_t a0 = Rounded(low.x), a1 = Rounded(low.y);
      const uint32_t a2 = Rounded(high.x), a3 = Rounded(high.y);
#pragma unroll
      for (int n = 0; n < kColumns; n += 2) {
        const float2 first = LoadShared2(b + n * 32);
        const float2 last = LoadShared2(b + n * 32 + 4 * p.b_pitch);
        MultiplySkinny<T>(sums[n], a0, a1, a2, a3, Rounded(first.x),
                          Rounded(last.x));
        MultiplySkinny<T>(sums[n + 1], a0, a1, a2, a3, Rounded(first.y),
                          Rounded(last.y));
      }
    } else {
      uint32_t a_words[4];
      LoadMatrix4Transposed(a, a_words);
#pragma unroll
      for (int n = 0; n < kColumns; n += 2) {
        uint32_t b_words[4];
        LoadMatrix4Transposed(b + n * 16, b_words);
        MultiplySkinny<T>(sums[n], a_words[0], a_words[1], a_words[2],
                          a_words[3], b_words[0], b_words[1]);
        MultiplySkinny<T>(sums[n + 1], a_words[0], a_words[1], a_words[2],
                          a_words[3], b_words[2], b_words[3]);
      }
    }
  }

  // As the sums lie in registers: AddSkinny knows where they belong.
  __device__ __forceinline__ void Write(const SkinnyRingProblem& p,
                                        float4* partial) const {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      if (FirstOfB<T>(n) >= p.b_channels) break;
      partial[n * 32] =
          make_float4(sums[n][0], sums[n][1], sums[n][2], sums[n][3]);
    }
  }

 private:
  static __device__ __forceinline__ uint32_t Rounded(float v) {
    return AsMultiplied<T>(__float_as_uint(v));
  }
};

template <typename T, int kColumns>
__global__ void __launch_bounds__(kSkinnyRingThreads, 1)
    SkinnyRingKernel(const __grid_constant__ SkinnyRingProblem p) {
  using Sums = SkinnySums<T, kColumns>;
  extern __shared__ __align__(128) uint8_t skinny_ring[];
  __shared__ SkinnyBarriers barriers;
  const uint32_t ring = SharedAddress(skinny_ring);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  if (threadIdx.x == 0) barriers.Init(1, p.a_blocks);
  __syncthreads();
  if (warp == p.a_blocks) {
    CopySkinnyRuns<T>(p, ring, barriers);
    return;
  }
  const int a_row = p.a_channels * sizeof(T), b_row = p.b_channels * sizeof(T);
  const uint32_t own_a =
      ring + Sums::OwnA(p.a_pitch, a_row) + warp * 16 * sizeof(T);
  const uint32_t own_b = ring + p.b_at + Sums::OwnB(p.b_pitch, b_row);
  const ReleaseOwn release;
  Sums sums;
  SkinnyPosition at;
  for (int64_t i = blockIdx.x; i < p.stages; i += gridDim.x, at.Advance(p)) {
    BarrierWait(SharedAddress(&barriers.full[at.stage]), at.round);
    const SkinnyStage<T> stage(p, i);
    const uint32_t offset = at.stage * p.stage_bytes;
    if (stage.lacks_some()) ZeroTheRest<T>(p, stage, ring + offset);
    const uint32_t a = own_a + offset, b = own_b + offset;
#pragma unroll 4
    for (int pixel = 0; pixel < stage.run; pixel += kSkinnyEach<T>) {
      sums.Step(p, a + pixel * a_row, b + pixel * b_row);
    }
    __syncwarp();
    release(SharedAddress(&barriers.empty[at.stage]));
  }
  LaunchDependents();
  const int64_t quads = int64_t{p.a_blocks} * kColumns * 32;
  sums.Write(p, reinterpret_cast<float4*>(p.partials) + blockIdx.x * quads +
                    warp * kColumns * 32 + threadIdx.x % 32);
}

inline constexpr int kSkinnyAddLanes = 8;

// Adds what so many blocks left; a block here has kSkinnyAddLanes quads.
template <typename T>
__global__ void __launch_bounds__(kAddThreads, 1)
    AddSkinny(const __grid_constant__ SkinnyRingProblem p, int blocks, T* dw) {
  constexpr int kTeams = kAddThreads / kSkinnyAddLanes;
  constexpr int kUnroll = 8;  // loads in flight
  const int lane = threadIdx.x % kSkinnyAddLanes;
  const int team = threadIdx.x / kSkinnyAddLanes;
  const int first = blockIdx.x * kSkinnyAddLanes;
  const int n = first / 32 % p.columns;
  if (FirstOfB<T>(n) >= p.b_channels) return;
  const int64_t quads = int64_t{p.a_blocks} * p.columns * 32;
  const float4* const from =
      reinterpret_cast<const float4*>(p.partials) + first + lane;
  float sum[4] = {};
  WaitForPrimary();
  for (int partial = team; partial < blocks; partial += kUnroll * kTeams) {
    float4 loaded[kUnroll] = {};
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int of = partial + u * kTeams;
      if (of < blocks) loaded[u] = LoadInOrder(from + of * quads);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      sum[0] += loaded[u].x, sum[1] += loaded[u].y;
      sum[2] += loaded[u].z, sum[3] += loaded[u].w;
    }
  }
  AddTeams<4, kAddThreads>(
      sum, kSkinnyAddLanes, kTeams, [&](int quad, int i, float total) {
        const int of_warp = (first + quad) % 32, g = of_warp / 4;
        const int column = of_warp % 4 * 2 + i % 2;
        const int a = (first + quad) / 32 / p.columns * 16 +
                      (sizeof(T) == 4 ? 2 * g + i / 2 : g + i / 2 * 8);
        const int b = FirstOfB<T>(n) + column * (sizeof(T) == 4 ? 2 : 1);
        if (a >= p.a_channels || b >= p.b_channels) return;
        dw[p.flipped ? b * p.a_channels + a : a * p.b_channels + b] =
            Convert<T>(total);
      });
}

}  // namespace jax_convbatch::hopper
