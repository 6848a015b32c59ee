// SPDX-License-Identifier: Apache-2.0
// wgrad where TMA cannot read the operands: as wgrad_kernel.cuh, with the
// gathering of cp_async_im2col.cuh. A block does one partial of one tile.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_CP_ASYNC_CP_ASYNC_WGRAD_CUH_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_CP_ASYNC_CP_ASYNC_WGRAD_CUH_

#include "cuda/sm90/copy/cp_async_im2col.cuh"

namespace jax_convbatch::hopper {

template <typename T_, int kN_, int kStages_>
struct CpAsyncWgradConfig {
  using T = T_;
  static constexpr int kM = 64 * kConsumers, kN = kN_, kStages = kStages_;
  static constexpr int kXBytes = kM * 128;
  static constexpr int kStageBytes = kXBytes + kN * 128;
  static constexpr int kSharedBytes = kStages * kStageBytes + 1024;
  // Of a partial: four accumulators of every multiplying thread at a time.
  static constexpr int kQuads = kN / 8;
};

// Where four accumulators of a multiplying thread belong in dw: filter rows
// `row` and row + 8, two columns each.
template <typename Config>
__device__ __forceinline__ void WriteCpAsyncQuad(
    const CpAsyncWgradProblem& problem, int tile, int quad, int thread,
    float4 v) {
  using T = typename Config::T;
  const int lane = thread % 32;
  const int first = tile / problem.n_tiles * Config::kM + thread / 32 * 16;
  const int k = tile % problem.n_tiles * Config::kN + quad * 8 + lane % 4 * 2;
  const CpAsyncRuns& runs = problem.runs;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first + half * 8 + lane / 4;
    const int run = runs.chunks.Divide(row / kChunk);
    const int u = row - run * int(runs.chunks.divisor()) * kChunk - runs.lead;
    if (run >= runs.count || unsigned(u) >= unsigned(runs.length)) continue;
    T* to = static_cast<T*>(problem.dw) +
            (int64_t{run} * runs.length + u) * problem.K + k;
    if (k < problem.K) to[0] = T(half == 0 ? v.x : v.z);
    if (k + 1 < problem.K) to[1] = T(half == 0 ? v.y : v.w);
  }
}

template <typename Config>
__device__ __forceinline__ void CpAsyncX(
    const CpAsyncWgradProblem& problem, int m_tile, int begin, int end,
    uint32_t ring, RingBarriers<Config::kStages>& barriers) {
  const int thread = threadIdx.x % kWarpgroup;
  CpAsyncChunk chunks[Config::kM / 64];
#pragma unroll
  for (int m = 0; m < Config::kM / 64; ++m) {
    chunks[m] =
        ChunkOfRuns(problem.x, problem.runs,
                    (m_tile * Config::kM + m * 64) / kChunk + thread % kChunk);
  }
  CpAsyncRing<Config::kStages> stages(barriers);
  for (int step = begin; step < end; ++step) {
    CpAsyncRow rows[kRowsOfBox];
#pragma unroll
    for (int r = 0; r < kRowsOfBox; ++r) {
      rows[r] = RowOfPixel(problem.x, problem.grid, problem.channels,
                           step * 64 + thread / kChunk + r * kRowStep);
    }
    const uint32_t to =
        ring + stages.Next() * Config::kStageBytes + ChunkAddress(thread);
#pragma unroll
    for (int m = 0; m < Config::kM / 64; ++m) {
      CpAsyncRows(to + m * kBoxBytes, rows, chunks[m], problem.x);
    }
    stages.Commit();
  }
  stages.Finish();
}

template <typename Config>
__device__ __forceinline__ void CpAsyncDy(
    const CpAsyncWgradProblem& problem, int channel, int begin, int end,
    uint32_t ring, RingBarriers<Config::kStages>& barriers) {
  const int thread = threadIdx.x % kWarpgroup;
  CpAsyncRing<Config::kStages> stages(barriers);
  for (int step = begin; step < end; ++step) {
    CpAsyncRow rows[kRowsOfBox];
#pragma unroll
    for (int r = 0; r < kRowsOfBox; ++r) {
      const int pixel = step * 64 + thread / kChunk + r * kRowStep;
      rows[r] = RowOfMatrix(problem.dy, pixel, pixel < problem.grid.pixels);
    }
    const uint32_t to = ring + stages.Next() * Config::kStageBytes +
                        Config::kXBytes + ChunkAddress(thread);
#pragma unroll
    for (int n = 0; n < Config::kN; n += 64) {
      CpAsyncRows(to + n * 128, rows,
                  ChunkOfMatrix(channel + n + thread % kChunk * kChunk),
                  problem.dy);
    }
    stages.Commit();
  }
  stages.Finish();
}

template <typename Config>
__device__ __forceinline__ void ConsumeCpAsyncWgrad(
    const CpAsyncWgradProblem& problem, int tile, int count, uint32_t ring,
    RingBarriers<Config::kStages>& barriers) {
  const int thread = threadIdx.x - 2 * kWarpgroup;
  RingPosition<Config::kStages> at;
  float acc[1][Config::kN / 2];
  MultiplyStages<typename Config::T, Contiguous::kRows, Contiguous::kRows>(
      acc, count, ring + thread / kWarpgroup * kBoxBytes,
      ring + Config::kXBytes, Config::kStageBytes, barriers, at);
  float4* partials =
      reinterpret_cast<float4*>(problem.partials) +
      int64_t{blockIdx.x} * Config::kQuads * kConsumers * kWarpgroup + thread;
#pragma unroll
  for (int quad = 0; quad < Config::kQuads; ++quad) {
    const float* a = &acc[0][quad * 4];
    const float4 v = make_float4(a[0], a[1], a[2], a[3]);
    if (problem.splits == 1) {
      WriteCpAsyncQuad<Config>(problem, tile, quad, thread, v);
    } else {
      partials[quad * kConsumers * kWarpgroup] = v;
    }
  }
}

// A grid of splits x tiles.
template <typename Config>
__global__ void __launch_bounds__(kCpAsyncThreads, 1)
    CpAsyncWgradKernel(const __grid_constant__ CpAsyncWgradProblem problem) {
  extern __shared__ uint8_t shared[];
  __shared__ RingBarriers<Config::kStages> barriers;
  const uint32_t ring = (SharedAddress(shared) + 1023) & ~1023u;
  if (threadIdx.x == 0) {
    barriers.Init(kCpAsyncArrivals, kConsumers * kWarpgroup / 32);
  }
  __syncthreads();

  // Tiles of the same pixels run together.
  const int split = blockIdx.x / problem.tiles;
  const int tile = blockIdx.x - split * problem.tiles;
  const int m_tile = tile / problem.n_tiles;
  const int channel = (tile - m_tile * problem.n_tiles) * Config::kN;
  const int begin = split * problem.steps_each;
  const int end = min(begin + problem.steps_each, problem.steps);
  const int warpgroup = threadIdx.x / kWarpgroup;
  if (warpgroup < 2) {
    GiveRegisters<kCpAsyncRegisters>();
    if (warpgroup == 0) {
      CpAsyncX<Config>(problem, m_tile, begin, end, ring, barriers);
    } else {
      CpAsyncDy<Config>(problem, channel, begin, end, ring, barriers);
    }
  } else {
    TakeRegisters<kCpAsyncConsumerRegisters>();
    ConsumeCpAsyncWgrad<Config>(problem, tile, end - begin, ring, barriers);
  }
}

// Adds the partials of a tile in order: a grid of tiles x quads.
template <typename Config>
__global__ void __launch_bounds__(kConsumers* kWarpgroup)
    AddCpAsyncPartials(const __grid_constant__ CpAsyncWgradProblem problem) {
  const int tile = blockIdx.x / Config::kQuads;
  const int quad = blockIdx.x % Config::kQuads;
  constexpr int kPartial = Config::kQuads * kConsumers * kWarpgroup;
  const float4* partials = reinterpret_cast<const float4*>(problem.partials) +
                           int64_t{tile} * kPartial +
                           quad * kConsumers * kWarpgroup + threadIdx.x;
  const int64_t step = int64_t{problem.tiles} * kPartial;
  float4 sum = partials[0];
#pragma unroll 16
  for (int split = 1; split < problem.splits; ++split) {
    const float4 v = partials[split * step];
    sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
  }
  WriteCpAsyncQuad<Config>(problem, tile, quad, threadIdx.x, sum);
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_CP_ASYNC_CP_ASYNC_WGRAD_CUH_
