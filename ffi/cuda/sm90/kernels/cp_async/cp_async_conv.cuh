// SPDX-License-Identifier: Apache-2.0
// fprop and dgrad where TMA cannot read the operands: channels that are not a
// multiple of 8, or strides, dilations and paddings beyond its range.
//
// As conv_kernel.cuh, but two warpgroups gather, the input by chunks of the
// runs that taps form in memory and the weights in the same order, and the two
// that multiply share a tile. Output is written by guarded stores.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_CP_ASYNC_CP_ASYNC_CONV_CUH_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_CP_ASYNC_CP_ASYNC_CONV_CUH_

#include "cuda/sm90/copy/cp_async_im2col.cuh"

namespace jax_convbatch::hopper {

// kWeights: as in ConvConfig.
template <typename T_, int kN_, int kStages_, Contiguous kWeights_>
struct CpAsyncConvConfig {
  using T = T_;
  static constexpr int kM = 64 * kConsumers, kN = kN_, kStages = kStages_;
  static constexpr Contiguous kWeights = kWeights_;
  static constexpr int kInputBytes = kM * 128;
  static constexpr int kStageBytes = kInputBytes + kN * 128;
  static constexpr int kRingBytes = kStages * kStageBytes;
  static constexpr int kSharedBytes =
      kRingBytes + kConsumers * kBoxBytes + 1024;
};

struct CpAsyncTile {
  const CpAsyncSubproblem* sub;
  int pixel, channel, iterations;
};

// Tiles of the sub-problems take turns, as in conv_kernel.cuh.
template <typename Config>
__device__ __forceinline__ CpAsyncTile
CpAsyncTileAt(const CpAsyncConvProblem& problem, int tile) {
  const int row = tile / problem.n_tiles;
  const int channel = (tile - row * problem.n_tiles) * Config::kN;
  const int group = row / problem.subs;
  const CpAsyncSubproblem* sub = &problem.sub[(row + group) % problem.subs];
  const int pixel = group * Config::kM;
  return {sub, pixel, channel, pixel < sub->grid.pixels ? sub->iterations : 0};
}

template <typename Config>
__device__ __forceinline__ void CpAsyncInput(
    const CpAsyncConvProblem& problem, uint32_t ring,
    RingBarriers<Config::kStages>& barriers) {
  const int thread = threadIdx.x % kWarpgroup;
  const uint32_t to = ring + ChunkAddress(thread);
  CpAsyncRing<Config::kStages> stages(barriers);
  for (int t = blockIdx.x; t < problem.tiles; t += gridDim.x) {
    const CpAsyncTile tile = CpAsyncTileAt<Config>(problem, t);
    if (tile.iterations == 0) continue;
    CpAsyncRow rows[Config::kM / kRowStep];
#pragma unroll
    for (int r = 0; r < Config::kM / kRowStep; ++r) {
      rows[r] =
          RowOfPixel(problem.input, tile.sub->grid, problem.input_channels,
                     tile.pixel + thread / kChunk + r * kRowStep);
    }
    for (int i = 0; i < tile.iterations; ++i) {
      const CpAsyncChunk chunk =
          ChunkOfRuns(problem.input, tile.sub->runs, i * 8 + thread % kChunk);
      const int stage = stages.Next();
      CpAsyncRows(to + stage * Config::kStageBytes, rows, chunk, problem.input);
      stages.Commit();
    }
  }
  stages.Finish();
}

// fprop: the rows of a stage are elements of the runs, its chunks channels.
template <typename Config>
__device__ __forceinline__ void CpAsyncWeightRows(
    const CpAsyncConvProblem& problem, uint32_t ring,
    RingBarriers<Config::kStages>& barriers) {
  const int thread = threadIdx.x % kWarpgroup;
  const uint32_t to = ring + Config::kInputBytes + ChunkAddress(thread);
  const CpAsyncRuns& runs = problem.sub[0].runs;
  CpAsyncRing<Config::kStages> stages(barriers);
  for (int t = blockIdx.x; t < problem.tiles; t += gridDim.x) {
    const CpAsyncTile tile = CpAsyncTileAt<Config>(problem, t);
    for (int i = 0; i < tile.iterations; ++i) {
      CpAsyncRow rows[kRowsOfBox];
#pragma unroll
      for (int r = 0; r < kRowsOfBox; ++r) {
        const int row = i * 64 + thread / kChunk + r * kRowStep;
        const int chunk = row / kChunk;
        const int run = runs.chunks.Divide(chunk);
        const int u =
            row - run * int(runs.chunks.divisor()) * kChunk - runs.lead;
        const bool valid =
            run < runs.count && unsigned(u) < unsigned(runs.length);
        rows[r] = RowOfMatrix(problem.weights, run * runs.length + u, valid);
      }
      const int stage = stages.Next();
#pragma unroll
      for (int n = 0; n < Config::kN; n += 64) {
        CpAsyncRows(to + stage * Config::kStageBytes + n * 128, rows,
                    ChunkOfMatrix(tile.channel + n + thread % kChunk * kChunk),
                    problem.weights);
      }
      stages.Commit();
    }
  }
  stages.Finish();
}

// dgrad: the rows of a stage are input channels, its chunks those of the runs,
// one run a tap.
template <typename Config>
__device__ __forceinline__ void CpAsyncWeightChunks(
    const CpAsyncConvProblem& problem, uint32_t ring,
    RingBarriers<Config::kStages>& barriers) {
  const int thread = threadIdx.x % kWarpgroup;
  const uint32_t to = ring + Config::kInputBytes + ChunkAddress(thread);
  CpAsyncRing<Config::kStages> stages(barriers);
  for (int t = blockIdx.x; t < problem.tiles; t += gridDim.x) {
    const CpAsyncTile tile = CpAsyncTileAt<Config>(problem, t);
    if (tile.iterations == 0) continue;
    const CpAsyncSubproblem& sub = *tile.sub;
    CpAsyncRow rows[Config::kN / kRowStep];
#pragma unroll
    for (int r = 0; r < Config::kN / kRowStep; ++r) {
      const int row = tile.channel + thread / kChunk + r * kRowStep;
      rows[r] = RowOfMatrix(problem.weights, row, row < problem.channels);
    }
    for (int i = 0; i < tile.iterations; ++i) {
      const int at = i * 8 + thread % kChunk;
      const int run = sub.runs.chunks.Divide(at);
      const int row = sub.runs.cols.Divide(run);
      const int col = run - row * sub.runs.cols.divisor();
      const int tap =
          (sub.taps_h.tap + row * sub.taps_h.tap_step) * problem.filter_width +
          sub.taps_w.tap + col * sub.taps_w.tap_step;
      CpAsyncChunk chunk =
          ChunkOfMatrix((at - run * sub.runs.chunks.divisor()) * kChunk);
      chunk.offset += tap * problem.weights_tap;
      if (run >= sub.runs.count) chunk.end = 0;
      const int stage = stages.Next();
      CpAsyncRows(to + stage * Config::kStageBytes, rows, chunk,
                  problem.weights);
      stages.Commit();
    }
  }
  stages.Finish();
}

// Columns from `channel` on of a row at `to`, as far as they exist.
template <int kVector>
__device__ __forceinline__ void StoreChunk(const CpAsyncConvProblem& problem,
                                           uint16_t* to, int channel,
                                           const uint4& chunk) {
  using Store = typename LoadOf<kVector>::type;
  uint32_t words[4];
  Unpack(chunk, words);
#pragma unroll
  for (int i = 0; i < kChunk; i += kVector) {
    if (channel + i >= problem.channels) return;
    const uint32_t run = problem.output_run.Divide(channel + i);
    Store* at = reinterpret_cast<Store*>(
        to + run * problem.output_run_step +
        (channel + i - run * problem.output_run.divisor()));
    if constexpr (kVector == 8) {
      *at = chunk;
    } else if constexpr (kVector == 4) {
      *at = make_uint2(words[i / 2], words[i / 2 + 1]);
    } else if constexpr (kVector == 2) {
      *at = words[i / 2];
    } else {
      *at = static_cast<uint16_t>(words[i / 2] >> (i % 2 * 16));
    }
  }
}

// 64 pixels x kN channels, through a box of shared memory at `buffer`.
template <typename T, int kHalfN>
__device__ __forceinline__ void StoreCpAsync(const CpAsyncConvProblem& problem,
                                             const CpAsyncSubproblem& sub,
                                             const float (&acc)[kHalfN],
                                             uint32_t buffer, int barrier,
                                             int pixel, int channel) {
  const int thread = threadIdx.x % kWarpgroup;
  const int lane = thread % 32;
  const int line = thread / 32 * 16 + lane % 16;
  uint16_t* to[kRowsOfBox];
#pragma unroll
  for (int r = 0; r < kRowsOfBox; ++r) {
    const int at = pixel + thread / kChunk + r * kRowStep;
    uint32_t image = at;
    const int col = TakeDigit(sub.grid.cols, image);
    const int row = TakeDigit(sub.grid.rows, image);
    to[r] = at < sub.grid.pixels
                ? problem.output + sub.output + image * problem.output_image +
                      row * problem.output_row + col * problem.output_col
                : nullptr;
  }
#pragma unroll
  for (int n = 0; n < 2 * kHalfN; n += 64) {
    if (channel + n >= problem.channels) break;
    NamedBarrier(barrier, kWarpgroup);  // the box has been read
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      const float* a = &acc[n / 2 + 4 * j];
      StoreMatrix4(buffer + line * 128 + ((j + lane / 16 ^ line % 8) << 4),
                   Pack<T>(a[0], a[1]), Pack<T>(a[2], a[3]),
                   Pack<T>(a[4], a[5]), Pack<T>(a[6], a[7]));
    }
    NamedBarrier(barrier, kWarpgroup);
    const int first = channel + n + thread % kChunk * kChunk;
#pragma unroll
    for (int r = 0; r < kRowsOfBox; ++r) {
      if (to[r] == nullptr) continue;
      uint4 chunk;
      asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(chunk.x), "=r"(chunk.y), "=r"(chunk.z), "=r"(chunk.w)
                   : "r"(buffer + ChunkAddress(thread) + r * kRowStep * 128)
                   : "memory");
      switch (problem.output_vector) {
        case 8:
          StoreChunk<8>(problem, to[r], first, chunk);
          break;
        case 4:
          StoreChunk<4>(problem, to[r], first, chunk);
          break;
        case 2:
          StoreChunk<2>(problem, to[r], first, chunk);
          break;
        default:
          StoreChunk<1>(problem, to[r], first, chunk);
      }
    }
  }
}

template <typename Config>
__device__ __forceinline__ void ConsumeCpAsync(
    const CpAsyncConvProblem& problem, int group, uint32_t ring,
    RingBarriers<Config::kStages>& barriers) {
  RingPosition<Config::kStages> at;
  for (int t = blockIdx.x; t < problem.tiles; t += gridDim.x) {
    const CpAsyncTile tile = CpAsyncTileAt<Config>(problem, t);
    float acc[1][Config::kN / 2];
    MultiplyStages<typename Config::T, Contiguous::kReduction,
                   Config::kWeights>(
        acc, tile.iterations, ring + group * kBoxBytes,
        ring + Config::kInputBytes, Config::kStageBytes, barriers, at);
    StoreCpAsync<typename Config::T>(
        problem, *tile.sub, acc[0],
        ring + Config::kRingBytes + group * kBoxBytes, 1 + group,
        tile.pixel + group * 64, tile.channel);
  }
}

template <typename Config>
__global__ void __launch_bounds__(kCpAsyncThreads, 1)
    CpAsyncConvKernel(const __grid_constant__ CpAsyncConvProblem problem) {
  extern __shared__ uint8_t shared[];
  __shared__ RingBarriers<Config::kStages> barriers;
  const uint32_t ring = (SharedAddress(shared) + 1023) & ~1023u;
  if (threadIdx.x == 0) {
    barriers.Init(kCpAsyncArrivals, kConsumers * kWarpgroup / 32);
  }
  __syncthreads();

  const int warpgroup = threadIdx.x / kWarpgroup;
  if (warpgroup < 2) {
    GiveRegisters<kCpAsyncRegisters>();
    if (warpgroup == 0) {
      CpAsyncInput<Config>(problem, ring, barriers);
    } else if constexpr (Config::kWeights == Contiguous::kRows) {
      CpAsyncWeightRows<Config>(problem, ring, barriers);
    } else {
      CpAsyncWeightChunks<Config>(problem, ring, barriers);
    }
  } else {
    TakeRegisters<kCpAsyncConsumerRegisters>();
    ConsumeCpAsync<Config>(problem, warpgroup - 2, ring, barriers);
  }
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_CP_ASYNC_CP_ASYNC_CONV_CUH_
