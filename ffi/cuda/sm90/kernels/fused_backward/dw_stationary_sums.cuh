// SPDX-License-Identifier: Apache-2.0
// What a block of dw_stationary_backward.cuh has, and how the blocks' sums of
// dw and db become one.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_FUSED_BACKWARD_DW_STATIONARY_SUMS_CUH_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_FUSED_BACKWARD_DW_STATIONARY_SUMS_CUH_

#include <algorithm>

#include "cuda/common/dependent_launch.cuh"
#include "cuda/sm90/copy/pipeline.cuh"
#include "cuda/sm90/copy/strided_pixels.cuh"
#include "cuda/sm90/problem/fused_backward.h"

namespace jax_convbatch::hopper {

inline constexpr int kBackwardShared = 231000;

struct DwStationaryProblem {
  CUtensorMap x, dy, w, dz;  // boxes of 64 x 64
  // Of the pixels that the filter meets, then of those that get zeros, by
  // residue class of the stride.
  CUtensorMap dx[kBackwardSubproblems];
  const uint8_t* bitmask;
  float* partials;
  int pixels, tiles;
  int slices, blocks;  // of channels; of each slice
  bool stores_dz;
  StridedPixels walk;

  __device__ bool Strided() const { return walk.subs > 1; }
  __device__ int Slice() const { return blockIdx.x % slices; }
  __device__ int FirstTile() const { return blockIdx.x / slices; }
};

// kC: channels of a slice. kShared: the warpgroups share each tile: of dw each
// has half of the input channels, or where these are 64, of the output's.
template <typename T_, int kC_, int kK_, bool kShared_ = false>
struct DwStationaryConfig {
  using T = T_;
  static constexpr int kC = kC_, kK = kK_;
  static constexpr bool kShared = kShared_;
  static constexpr bool kHalvesK = kShared && kC == 64;
  static constexpr int kHalves = kShared ? 2 : 1;
  // Of a warpgroup's dw: boxes of 64 input channels, output channels.
  static constexpr int kRowBoxes = kC / 64 / (kHalvesK ? 1 : kHalves);
  static constexpr int kN = kHalvesK ? kK / 2 : kK;
  static constexpr int kCBoxes = kC / 64, kKBoxes = kK / 64;
  // In a stage dy comes before x.
  static constexpr int kDyBytes = kKBoxes * kBoxBytes;
  static constexpr int kStageBytes = (kCBoxes + kKBoxes) * kBoxBytes;
  static constexpr int kBitmaskBytes = kBackwardPixels * kK / 8;
  static constexpr int kFilterBytes = kCBoxes * kKBoxes * kBoxBytes;
  static constexpr int kStages =
      std::min(8, (kBackwardShared - 1024 - kFilterBytes) /
                      (kStageBytes + kBitmaskBytes));
  static constexpr int kSharedBytes =
      1024 + kBoxBytes + kFilterBytes + kStages * (kStageBytes + kBitmaskBytes);
  // Sums of a thread in quads: of eight columns two, of two rows.
  static constexpr int kQuads = kRowBoxes * kN / 8;
  // Of a block: dw as the threads have it, then db.
  static constexpr int kPartial = kC * kK + kK;
  static constexpr int kChunks = kK / 8;  // of 16 bytes in a row of dy
  // Threads that make dz of a tile; a team has a row.
  static constexpr int kMaskThreads = kHalves * kWarpgroup;
  static constexpr int kTeams = kMaskThreads / kChunks;
  static constexpr int kSumBytes = kShared ? 0 : kC * kK * 4;
  static_assert(kStages >= 2 &&
                kSumBytes + 2 * kWarpgroup * 32 <= kStages * kStageBytes);
};

// Writes the block's partial; where the warpgroups do not share tiles their
// sums are added.
template <typename Config>
__device__ __forceinline__ void WriteSums(
    const DwStationaryProblem& problem, uint32_t ring, int group, int thread,
    const float (&dw)[Config::kRowBoxes][Config::kN / 2],
    const float (&db)[8]) {
  constexpr int kRowQuads = Config::kN / 8;
  auto quad_of = [&](int i) {
    const float* v = &dw[i / kRowQuads][i % kRowQuads * 4];
    return make_float4(v[0], v[1], v[2], v[3]);
  };
  const uint32_t own = ring + thread * 16;
  const uint32_t sums = ring + Config::kSumBytes;  // of db
  if (!Config::kShared && group == 1) {
#pragma unroll
    for (int i = 0; i < Config::kQuads; ++i) {
      StoreShared4(own + i * (kWarpgroup * 16), quad_of(i));
    }
  }
  // [channel of eight][team of either warpgroup][chunk]
  constexpr int kAll = kConsumers * kWarpgroup;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    StoreShared1(sums + (i * kAll + group * kWarpgroup + thread) * 4, db[i]);
  }
  NamedBarrier(1, kAll);
  const int64_t number =
      int64_t{problem.Slice()} * problem.blocks + problem.FirstTile();
  float* const partial = problem.partials + number * Config::kPartial;
  float4* const quads =
      reinterpret_cast<float4*>(partial) +
      (Config::kShared ? group * Config::kQuads * kWarpgroup : 0) + thread;
  if (Config::kShared || group == 0) {
#pragma unroll
    for (int i = 0; i < Config::kQuads; ++i) {
      float4 v = quad_of(i);
      if constexpr (!Config::kShared) {
        const float4 u = LoadShared4(own + i * (kWarpgroup * 16));
        v.x += u.x, v.y += u.y, v.z += u.z, v.w += u.w;
      }
      quads[i * kWarpgroup] = v;
    }
  }
  if (group == 0) return;
  for (int k = thread; k < Config::kK; k += kWarpgroup) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kAll / Config::kChunks; ++i) {
      float v;
      asm volatile(
          "ld.shared.f32 %0, [%1];"
          : "=f"(v)
          : "r"(sums + (k % 8 * kAll + i * Config::kChunks + k / 8) * 4)
          : "memory");
      sum += v;
    }
    partial[Config::kC * Config::kK + k] = sum;
  }
}

inline constexpr int kSumQuads = 32, kSumLanes = 8;

// Of AddLayerSums, for each slice.
template <typename Config>
inline constexpr int kSumBlocks =
    (Config::kPartial / 4 + kSumQuads - 1) / kSumQuads;

// Adds the blocks' partials in order, a quad by kSumLanes threads.
template <typename Config>
__global__ void __launch_bounds__(kSumQuads* kSumLanes)
    AddLayerSums(const float* __restrict__ partials, int blocks,
                 typename Config::T* __restrict__ dw,
                 typename Config::T* __restrict__ db) {
  using T = typename Config::T;
  constexpr int kOfDw = Config::kC * Config::kK / 4;
  constexpr int kAll = Config::kPartial / 4;
  const int slice = blockIdx.x / kSumBlocks<Config>;
  const int quad =
      blockIdx.x % kSumBlocks<Config> * kSumQuads + threadIdx.x % kSumQuads;
  const int lane = threadIdx.x / kSumQuads;
  WaitForPrimary();
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  auto add = [&](const float4& v) {
    sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
  };
  if (quad < kAll) {
    const float4* from = reinterpret_cast<const float4*>(partials) +
                         int64_t{slice} * blocks * kAll + quad;
#pragma unroll 8
    for (int b = lane; b < blocks; b += kSumLanes) add(from[int64_t{b} * kAll]);
  }
  __shared__ float4 shared[kSumLanes][kSumQuads];
  shared[lane][threadIdx.x % kSumQuads] = sum;
  __syncthreads();
  if (lane > 0 || quad >= kAll) return;
#pragma unroll
  for (int i = 1; i < kSumLanes; ++i) add(shared[i][threadIdx.x]);
  const uint32_t first = Pack<T>(sum.x, sum.y), second = Pack<T>(sum.z, sum.w);
  if (quad >= kOfDw) {
    if (slice > 0) return;
    reinterpret_cast<uint2*>(db)[quad - kOfDw] = make_uint2(first, second);
    return;
  }
  const int thread = quad % kWarpgroup, i = quad / kWarpgroup;
  const int c = i / (Config::kK / 8) * 64 + thread / 32 * 16 + thread % 32 / 4;
  const int k = i % (Config::kK / 8) * 8 + thread % 4 * 2;
  auto* to = reinterpret_cast<uint32_t*>(
      dw + (int64_t{slice} * Config::kC + c) * Config::kK + k);
  to[0] = first;
  to[8 * Config::kK / 2] = second;
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_FUSED_BACKWARD_DW_STATIONARY_SUMS_CUH_
