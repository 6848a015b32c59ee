// SPDX-License-Identifier: Apache-2.0
// wgrad of few channels: dw[column, k] = sum over pixels of x's columns, read
// pair by pair from row bands, times dy. Rows of the product are permuted:
// thread g of a warp has elements 2 g and 2 g + 1 of the column in its rows g
// and g + 8, so that a loaded pair serves both.
#pragma once

#include "cuda/common/dependent_launch.cuh"
#include "cuda/sm90/arch/wgmma_registers.cuh"
#include "cuda/sm90/epilogue/add_in_order.cuh"
#include "cuda/sm90/kernels/few_channels/few_channels.cuh"

namespace jax_convbatch::hopper {

// kBlocks: of 64 elements of the columns, padded.
template <typename T_, int kBlocks_, bool kOdd_>
struct FewChannelsWgradConfig {
  using T = T_;
  static constexpr bool kOdd = kOdd_;
  static constexpr int kBlocks = kBlocks_;
  // Of a partial: four accumulators of a warpgroup at a time.
  static constexpr int kQuads = kBlocks * 8;
};

// The first of the two elements of a column that a thread's quad is of.
__device__ __forceinline__ int ElementOfQuad(int quad, int thread) {
  return quad / 8 * 64 + thread / 32 * 16 + thread % 32 / 4 * 2;
}
// Whether the quad is of any filter row.
__device__ __forceinline__ bool HasFewChannelsQuad(
    const FewChannelsLayout& layout, int quad, int thread) {
  const int j = ElementOfQuad(quad, thread);
  return FilterRow(layout, j) >= 0 || FilterRow(layout, j + 1) >= 0;
}

// A block's partial.
template <typename Config>
__device__ __forceinline__ float4* FewChannelsPartial(
    const FewChannelsProblem& problem, int block) {
  return reinterpret_cast<float4*>(problem.partials) +
         int64_t{block} * Config::kQuads * kWarpgroup;
}

template <typename Config>
__device__ __forceinline__ void WriteFewChannelsQuad(
    const FewChannelsProblem& problem, int n_tile, int quad, int thread,
    float4 v) {
  using T = typename Config::T;
  const int lane = thread % 32;
  const int j = ElementOfQuad(quad, thread);
  const int k = n_tile * 64 + quad % 8 * 8 + lane % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = FilterRow(problem.layout, j + half);
    if (row < 0) continue;
    T* to = static_cast<T*>(problem.dw) + int64_t{row} * problem.K + k;
    int step = 1;
    if (problem.flipped > 0) {
      const int tap = row / problem.flipped;
      step = problem.flipped;
      to = static_cast<T*>(problem.dw) +
           (int64_t{problem.taps - 1 - tap} * problem.K + k) * step +
           (row - tap * step);
    }
    if (k < problem.K) to[0] = T(half == 0 ? v.x : v.z);
    if (k + 1 < problem.K) to[step] = T(half == 0 ? v.y : v.w);
  }
}

// Row bands, and boxes of 64 pixels x 64 channels of dy.
template <typename Config>
__device__ __forceinline__ void FillBandsAndDy(
    const FewChannelsProblem& problem, int n_tile, int split, uint32_t ring,
    RingBarriers<kFewChannelsStages>& barriers, int dy_offset) {
  CpAsyncRing<kFewChannelsStages> stages(barriers);
  for (int t = split; t < problem.tiles; t += problem.splits) {
    const FewChannelsTile tile(problem, t);
    const int stage = stages.Next();
    const uint32_t to = ring + stage * problem.stage_bytes;
    if (threadIdx.x == 0) {
      const uint32_t full = SharedAddress(&barriers.full[stage]);
      const int pixels = min(problem.tile, problem.pixels - tile.pixel);
      BarrierArriveExpect(full, (pixels + 63) / 64 * kBoxBytes);
      for (int sub = 0; sub < pixels; sub += 64) {
        LoadTile3(to + dy_offset + sub * 128, problem.dy_map, full, n_tile * 64,
                  tile.pixel + sub, tile.image);
      }
    }
    __syncwarp();
    FillBand(problem, tile, to);
    stages.Commit();
  }
}

// The multiplier's left operand of 16 pixels, of which a thread has those that
// begin at `from`: kBlocks times 64 elements of their columns. kSome: a place
// below zero stands for a pixel that is not there.
template <bool kOdd, bool kSome, int kBlocks>
__device__ __forceinline__ void LoadColumnsAt(uint32_t (&a)[kBlocks][4],
                                              uint32_t band,
                                              const int (&from)[4],
                                              const int (&offset)[kBlocks]) {
#pragma unroll
  for (int m = 0; m < kBlocks; ++m) {
    uint32_t pair[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int at = kSome ? max(0, from[j]) : from[j];
      pair[j] = LoadPair<kOdd>(band + at + offset[m]);
      // A pixel that is not there must not meet dy's zeros as a nan.
      if (kSome && from[j] < 0) pair[j] = 0;
    }
    a[m][0] = __byte_perm(pair[0], pair[1], 0x5410);
    a[m][1] = __byte_perm(pair[0], pair[1], 0x7632);
    a[m][2] = __byte_perm(pair[2], pair[3], 0x5410);
    a[m][3] = __byte_perm(pair[2], pair[3], 0x7632);
  }
}

// The same, places from a table.
template <bool kOdd, int kBlocks>
__device__ __forceinline__ void LoadColumns(uint32_t (&a)[kBlocks][4],
                                            uint32_t band, uint32_t table,
                                            const int (&offset)[kBlocks]) {
  // Pixels 2 t and 2 t + 1 of 16, and 8 further.
  table += threadIdx.x % 4 * 8;
  const int2 near = LoadTwo(table), far = LoadTwo(table + 32);
  LoadColumnsAt<kOdd, true>(a, band, {near.x, near.y, far.x, far.y}, offset);
}

template <typename Config>
__device__ __forceinline__ void ConsumeBandsAndDy(
    const FewChannelsProblem& problem, int split, int group, uint32_t ring,
    RingBarriers<kFewChannelsStages>& barriers, int dy_offset,
    float (&acc)[Config::kBlocks][32]) {
  const int thread = threadIdx.x % kWarpgroup;
  const int lane = thread % 32;
  int offset[Config::kBlocks];
#pragma unroll
  for (int m = 0; m < Config::kBlocks; ++m) {
    offset[m] =
        BandPair(problem.layout, m * 32 + thread / 32 * 8 + lane / 4).offset;
#pragma unroll
    for (int i = 0; i < 32; ++i) acc[m][i] = 0;
  }
  const int table_offset = BandBytes(problem);
  RingPosition<kFewChannelsStages> at;
  int turn = 0;
  for (int t = split; t < problem.tiles; t += problem.splits) {
    const FewChannelsTile tile(problem, t);
    const uint32_t band = ring + at.stage * problem.stage_bytes;
    BarrierWait(SharedAddress(&barriers.full[at.stage]), at.round);
    for (int sub = 0; sub < problem.tile; sub += 64) {
      if (tile.pixel + sub >= problem.pixels) break;
      if (turn++ % kConsumers != group) continue;
      const uint64_t b = Descriptor(band + dy_offset + sub * 128);
      // In two halves, so that one is loaded while the other is multiplied.
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t a[2][Config::kBlocks][4];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          LoadColumns<Config::kOdd>(
              a[i], band, band + table_offset + (sub + (2 * half + i) * 16) * 4,
              offset);
        }
        WgmmaFence();
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
          for (int m = 0; m < Config::kBlocks; ++m) {
            WgmmaRegisters<typename Config::T, Contiguous::kRows, 64>(
                acc[m], a[i][m],
                b + (2 * half + i) * kReductionStep<Contiguous::kRows>);
          }
        }
        WgmmaCommit();
        WgmmaWait<1>();
      }
    }
    WgmmaWait<0>();
    WarpArrive(lane, SharedAddress(&barriers.empty[at.stage]));
    at.Advance();
  }
}

// A grid of splits x n_tiles. The warpgroups' sums are added in order.
template <typename Config>
__global__ void __launch_bounds__(kThreads, 1)
    FewChannelsWgradKernel(const __grid_constant__ FewChannelsProblem problem) {
  extern __shared__ uint8_t shared[];
  __shared__ RingBarriers<kFewChannelsStages> barriers;
  const uint32_t ring = (SharedAddress(shared) + 1023) & ~1023u;
  if (threadIdx.x == 0) {
    barriers.Init(kWarpgroup / 32 * kWarpArrivals + 1,
                  kConsumers * kWarpgroup / 32 * kWarpArrivals);
  }
  __syncthreads();

  const int split = blockIdx.x / problem.n_tiles;
  const int n_tile = blockIdx.x - split * problem.n_tiles;
  const int dy_offset = problem.stage_bytes - problem.tile / 64 * kBoxBytes;
  const int warpgroup = threadIdx.x / kWarpgroup;
  if (warpgroup == 0) {
    GiveRegisters<kProducerRegisters>();
    FillBandsAndDy<Config>(problem, n_tile, split, ring, barriers, dy_offset);
    return;
  }
  TakeRegisters<kConsumerRegisters>();
  float acc[Config::kBlocks][32];
  ConsumeBandsAndDy<Config>(problem, split, warpgroup - 1, ring, barriers,
                            dy_offset, acc);
  LaunchDependents();
  const int thread = threadIdx.x % kWarpgroup;
  float4* sums =
      reinterpret_cast<float4*>(shared + (ring - SharedAddress(shared))) +
      thread;
  NamedBarrier(1, kConsumers * kWarpgroup);  // the ring has been read
  float4* partial = FewChannelsPartial<Config>(problem, blockIdx.x) + thread;
#pragma unroll
  for (int quad = 0; quad < Config::kQuads; ++quad) {
    const float* v = &acc[quad / 8][quad % 8 * 4];
    if (warpgroup == 2) {
      sums[quad * kWarpgroup] = make_float4(v[0], v[1], v[2], v[3]);
    }
  }
  NamedBarrier(1, kConsumers * kWarpgroup);
  if (warpgroup == 2) return;
#pragma unroll
  for (int quad = 0; quad < Config::kQuads; ++quad) {
    const float* v = &acc[quad / 8][quad % 8 * 4];
    const float4 other = sums[quad * kWarpgroup];
    partial[quad * kWarpgroup] = make_float4(v[0] + other.x, v[1] + other.y,
                                             v[2] + other.z, v[3] + other.w);
  }
}

// Adds the partials in order. A block has teams.lanes() of a tile's quads.
template <typename Config>
__global__ void __launch_bounds__(kAddThreads)
    AddFewChannelsPartials(const __grid_constant__ FewChannelsProblem problem,
                           AddTeams teams) {
  constexpr int kTileQuads = Config::kQuads * kWarpgroup;
  __shared__ AddRing ring;
  const unsigned tile_blocks = kTileQuads >> teams.lane_bits;
  const int n_tile = blockIdx.x / tile_blocks;
  const int of_tile =
      ((blockIdx.x - n_tile * tile_blocks) << teams.lane_bits) + teams.lane();
  const int quad = of_tile / kWarpgroup, thread = of_tile % kWarpgroup;
  const bool has = HasFewChannelsQuad(problem.layout, quad, thread);
  const int begin = teams.Begin(teams.group(), problem.splits);
  const int end = teams.Begin(teams.group() + 1, problem.splits);
  PartialLine line;
  line.step = line.first_step = int64_t{problem.n_tiles} * kTileQuads;
  line.at =
      FewChannelsPartial<Config>(problem, n_tile) + begin * line.step + of_tile;
  line.count = has ? end - begin : 0;
  float4 sum[1];
  WaitForPrimary();
  AddInOrder<1, kWarpgroup>(sum, line, ring, [] {});
  if (!teams.Join(sum, ring) || !has) return;
  WriteFewChannelsQuad<Config>(problem, n_tile, quad, thread, sum[0]);
}

}  // namespace jax_convbatch::hopper
