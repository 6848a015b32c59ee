// SPDX-License-Identifier: Apache-2.0
#include "cuda/common/fast_divmod.h"
#include "cuda/sm80/direct/depthwise_kind.h"
#include "cuda/sm80/direct/pairs.cuh"
#include "cuda/sm80/direct/walk.h"
#include "cuda/sm90/arch/launch.cuh"
#include "cuda/sm90/arch/ptx.cuh"
#include "cuda/sm90/kernels/depthwise/copied_tiles.h"
#include "cuda/sm90/kernels/depthwise/depthwise_copies.h"
#include "cuda/sm90/problem/box_map.h"

namespace jax_convbatch::direct {
namespace {

using Tile = CopiedTile;

struct Problem {
  // [N, H, W, C]: boxes of a stage, and of what a warp stores.
  CUtensorMap in, out;
  const void* filter;
  int channels, channel_tiles, workers, tiles;
  int origin_h, origin_w;
  // The filter's first tap in the order of the walk, and those below and
  // beside it.
  int first_tap, row_taps, col_taps;
  FastDivmod<uint32_t> across, down;  // tiles of an image
};

struct Place {
  int col, row, sample;

  __device__ Place(const Problem& p, uint32_t tile) {
    col = TakeDigit(p.across, tile) * Tile::kSize;
    row = TakeDigit(p.down, tile) * Tile::kSize;
    sample = static_cast<int>(tile);
  }
};

template <typename T>
__device__ __forceinline__ void SumPatch(
    const char* at, const float2 (&filter)[Tile::kTaps * Tile::kTaps],
    float2 (&sums)[Tile::kRows][Tile::kCols]) {
  constexpr int kWindow = Tile::kCols + Tile::kTaps - 1;
#pragma unroll
  for (int u = 0; u < Tile::kRows + Tile::kTaps - 1; ++u) {
    float2 window[kWindow];
#pragma unroll
    for (int i = 0; i < kWindow; ++i) {
      window[i] = LoadPair<T>(at + (u * Tile::kBox + i) * Tile::kPixel);
    }
#pragma unroll
    for (int row = 0; row < Tile::kRows; ++row) {
      const int r = u - row;
      if (r < 0 || r >= Tile::kTaps) continue;
#pragma unroll
      for (int s = 0; s < Tile::kTaps; ++s) {
#pragma unroll
        for (int col = 0; col < Tile::kCols; ++col) {
          MultiplyAdd(window[col + s], filter[r * Tile::kTaps + s],
                      sums[row][col]);
        }
      }
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    DepthwiseCopiesKernel(const __grid_constant__ Problem p) {
  extern __shared__ __align__(128) char shared[];
  __shared__ uint64_t full[Tile::kStages], empty[Tile::kStages];
  const int channel_tile = blockIdx.x % p.channel_tiles;
  const int worker = blockIdx.x / p.channel_tiles;
  const int first_channel = channel_tile * Tile::kChannels;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % Tile::kLanes;
  const int patch = threadIdx.x / Tile::kLanes;

  auto fetch = [&](int tile, int stage) {
    const Place place(p, tile);
    const uint32_t barrier = hopper::SharedAddress(&full[stage]);
    hopper::BarrierArriveExpect(barrier, Tile::kStageBytes);
    hopper::LoadTile4(hopper::SharedAddress(shared + stage * Tile::kStageBytes),
                      p.in, barrier, first_channel, place.col + p.origin_w,
                      place.row + p.origin_h, place.sample);
  };
  const bool issues = threadIdx.x == Tile::kWarps * 32;
  if (issues) {
    for (int i = 0; i < Tile::kStages; ++i) {
      hopper::BarrierInit(hopper::SharedAddress(&full[i]), 1);
      hopper::BarrierInit(hopper::SharedAddress(&empty[i]), Tile::kWarps);
    }
    hopper::FenceBarrierInit();
    for (int i = 0; i < Tile::kStages; ++i) {
      const int tile = worker + i * p.workers;
      if (tile < p.tiles) fetch(tile, i);
    }
  }

  char* const stores = shared + Tile::kStages * Tile::kStageBytes;
  auto* const weights =
      reinterpret_cast<float*>(stores + Tile::kWarps * Tile::kStoreBytes);
  constexpr int kTaps = Tile::kTaps * Tile::kTaps;
  for (int i = threadIdx.x; i < kTaps * Tile::kChannels; i += Tile::kThreads) {
    const int tap = i / Tile::kChannels;
    const int c = first_channel + i % Tile::kChannels;
    const int from = p.first_tap + tap / Tile::kTaps * p.row_taps +
                     tap % Tile::kTaps * p.col_taps;
    weights[i] =
        c < p.channels
            ? float(static_cast<const T*>(p.filter)[from * p.channels + c])
            : 0.0f;
  }
  __syncthreads();
  int stage = 0, phase = 0;
  auto advance = [&] {
    if (++stage == Tile::kStages) {
      stage = 0;
      phase ^= 1;
    }
  };
  if (warp == Tile::kWarps) {
    const int first = worker + Tile::kStages * p.workers;
    for (int tile = first; issues && tile < p.tiles; tile += p.workers) {
      hopper::BarrierWait(hopper::SharedAddress(&empty[stage]), phase);
      fetch(tile, stage);
      advance();
    }
    return;
  }
  float2 filter[kTaps];
#pragma unroll
  for (int i = 0; i < kTaps; ++i) {
    filter[i] =
        reinterpret_cast<const float2*>(weights)[i * Tile::kLanes + lane];
  }

  const int row = patch / 2 * Tile::kRows, col = patch % 2 * Tile::kCols;
  const char* const at =
      shared + (row * Tile::kBox + col) * Tile::kPixel + lane * 4;
  char* const mine = stores + warp * Tile::kStoreBytes;
  char* const to = mine + col * Tile::kPixel + lane * 4;
  for (int tile = worker; tile < p.tiles; tile += p.workers) {
    hopper::BarrierWait(hopper::SharedAddress(&full[stage]), phase);
    float2 sums[Tile::kRows][Tile::kCols] = {};
    SumPatch<T>(at + stage * Tile::kStageBytes, filter, sums);
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      hopper::BarrierArrive(hopper::SharedAddress(&empty[stage]));
    }
    // A warp's pixels to its own memory, once the last ones have been read.
    if (threadIdx.x % 32 == 0) hopper::StoreWaitRead<0>();
    __syncwarp();
#pragma unroll
    for (int i = 0; i < Tile::kRows; ++i) {
#pragma unroll
      for (int j = 0; j < Tile::kCols; ++j) {
        StorePair<true>(
            reinterpret_cast<T*>(to + (i * Tile::kSize + j) * Tile::kPixel),
            sums[i][j], 2);
      }
    }
    hopper::FenceAsyncProxy();
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      const Place place(p, tile);
      hopper::StoreTile4(p.out, hopper::SharedAddress(mine), first_channel,
                         place.col, place.row + row, place.sample);
      hopper::StoreCommit();
    }
    advance();
  }
  if (threadIdx.x % 32 == 0) hopper::StoreWaitRead<0>();
}

}  // namespace

cudaError_t RunDepthwiseCopies(Op op, const Call& call, Stage stage,
                               cudaStream_t stream) {
  const ConvGeometry& g = call.g;
  Walks walks;
  if (!(op == Op::kDgrad ? DgradWalks(g, &walks) : FpropWalks(g, &walks))) {
    return cudaErrorInvalidValue;
  }
  const AxisWalk &h = walks.h, &w = walks.w;
  const bool bf16 = call.type == Type::kBf16;
  const auto type = bf16 ? hopper::Type::kBf16 : hopper::Type::kF16;
  const auto kernel = bf16 ? &DepthwiseCopiesKernel<__nv_bfloat16>
                           : &DepthwiseCopiesKernel<__half>;
  const cudaError_t raised =
      hopper::RaiseSharedMemory(kernel, Tile::kSharedBytes);
  if (raised != cudaSuccess || stage == Stage::kPrepare) return raised;
  Problem p{};
  if (!hopper::EncodeBoxes(&p.in, type, call.lhs,
                           {g.C, w.in_size, h.in_size, g.N},
                           {Tile::kChannels, Tile::kBox, Tile::kBox, 1}) ||
      !hopper::EncodeBoxes(&p.out, type, call.result,
                           {g.C, w.out_size, h.out_size, g.N},
                           {Tile::kChannels, Tile::kSize, Tile::kRows, 1})) {
    return cudaErrorInvalidValue;
  }
  p.filter = call.rhs;
  p.channels = static_cast<int>(g.C);
  p.channel_tiles = call.plan.channel_tiles;
  p.workers = call.plan.workers;
  p.origin_h = h.origin;
  p.origin_w = w.origin;
  p.first_tap = h.taps[0].first * w.filter_size + w.taps[0].first;
  p.row_taps = h.tap_step * w.filter_size;
  p.col_taps = w.tap_step;
  const int across = (w.out_size + Tile::kSize - 1) / Tile::kSize;
  const int down = (h.out_size + Tile::kSize - 1) / Tile::kSize;
  p.tiles = static_cast<int>(g.N * across * down);
  p.across = FastDivmod<uint32_t>(across);
  p.down = FastDivmod<uint32_t>(down);
  kernel<<<call.plan.blocks(), Tile::kThreads, Tile::kSharedBytes, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace jax_convbatch::direct
