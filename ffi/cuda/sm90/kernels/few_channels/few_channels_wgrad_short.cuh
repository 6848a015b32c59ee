// SPDX-License-Identifier: Apache-2.0
// wgrad of few channels where each block has one tile, all of it in shared
// memory at once, as at small batches: what counts is how soon it is there. A
// warp copies dy, box by box, which the row band that the others fill comes
// beside; each warpgroup has 64 elements of the columns, so that none adds
// another's sums.
#pragma once

#include "cuda/sm90/arch/bulk_copy.cuh"
#include "cuda/sm90/kernels/few_channels/few_channels_wgrad.cuh"

namespace jax_convbatch::hopper {

template <typename Config>
inline constexpr int kFewChannelsShortThreads =
    Config::kBlocks * kWarpgroup + 32;

// Image rows of a tile's row band: the first, and how many there are.
struct BandRows {
  int first, count;

  __device__ BandRows(const FewChannelsProblem& problem,
                      const FewChannelsTile& tile) {
    const int last = min(tile.pixel + problem.tile, problem.pixels) - 1;
    const int first_p = problem.Q.Divide(tile.pixel);
    const int p = problem.Q.Divide(last) - first_p + 1;
    first = first_p * problem.stride_h - problem.pad_h;
    count = problem.rows - (problem.rows_p - p) * problem.stride_h;
  }
  __device__ bool InImage(const FewChannelsProblem& problem, int row) const {
    return unsigned(first + row) < unsigned(problem.H);
  }
};

// By a warp: sets up the barriers, and copies image rows, where TMA can, and
// dy, for which the products wait box by box. All products wait for the rows,
// so that no more than the first box comes before them.
template <bool kCopiesRows>
__device__ __forceinline__ void CopyBandAndDy(const FewChannelsProblem& problem,
                                              const FewChannelsTile& tile,
                                              int n_tile, uint32_t band,
                                              uint32_t dy, uint32_t full,
                                              uint32_t filled) {
  const int pixels = min(problem.tile, problem.pixels - tile.pixel);
  const int boxes = (pixels + 63) / 64, lane = threadIdx.x % 32;
  if (lane < boxes) BarrierInit(full + 8 * lane, 1);
  if (lane == 0) BarrierInit(filled, 1);
  FenceBarrierInit();
  __syncwarp();
  auto copy_dy = [&](int i) {
    BarrierArriveExpect(full + 8 * i, kBoxBytes);
    LoadTile3(dy + i * kBoxBytes, problem.dy_map, full + 8 * i, n_tile * 64,
              tile.pixel + i * 64, tile.image);
  };
  if (ElectOne()) copy_dy(0);
  if constexpr (kCopiesRows) {
    const BandRows rows(problem, tile);
    const int bytes = problem.copied_row * 2;
    const int begin = max(0, -rows.first);
    const int end = min(rows.count, problem.H - rows.first);
    if (lane == 0) BarrierArriveExpect(filled, max(0, end - begin) * bytes);
    __syncwarp();
    for (int row = begin + lane; row < end; row += 32) {
      LoadBytes(
          band + (row * problem.layout.pitch - problem.layout.origin) * 2,
          problem.x + (int64_t{tile.image} * problem.H + rows.first + row) *
                          problem.image_row,
          filled, bytes);
    }
    __syncwarp();
  }
  if (!ElectOne()) return;
  for (int i = 1; i < boxes; ++i) copy_dy(i);
}

// What of a row band is in no image row that is copied: zeros.
template <int kThreads>
__device__ __forceinline__ void ZeroAround(const FewChannelsProblem& problem,
                                           const FewChannelsTile& tile,
                                           uint32_t band) {
  const BandRows rows(problem, tile);
  const int line = problem.layout.pitch / 8;  // chunks of 16 bytes
  const int begin = -problem.layout.origin / 8;
  const int end = begin + problem.copied_row / 8;
  for (int row = threadIdx.x / 32; row < rows.count; row += kThreads / 32) {
    const bool copied = rows.InImage(problem, row);
    for (int i = threadIdx.x % 32; i < line; i += 32) {
      if (copied && i >= begin && i < end) continue;
      StoreShared4(band + (row * line + i) * 16, make_float4(0, 0, 0, 0));
    }
  }
}

// Where the pixels of a thread lie in the row band, 16 pixels after the other,
// where rows are whole such sixteens: pixels 2 t, 2 t + 1, and 8 further.
struct FewChannelsWalk {
  int row, at, col;  // bytes; columns
  int Q, row_bytes, step;

  __device__ explicit FewChannelsWalk(const FewChannelsProblem& problem,
                                      const FewChannelsTile& tile)
      : Q(problem.Q.divisor()),
        row_bytes(problem.stride_h * problem.layout.pitch * 2),
        step(problem.pixel_step * 2) {
    const int p = problem.Q.Divide(tile.pixel);
    col = tile.pixel - p * Q;
    row = (problem.layout.first + threadIdx.x % 4 * 2 * problem.pixel_step) * 2;
    at = row + col * step;
  }
  __device__ void Get(int (&from)[4]) const {
    from[0] = at, from[1] = at + step;
    from[2] = at + 8 * step, from[3] = at + 9 * step;
  }
  __device__ void Advance() {
    at += 16 * step, col += 16;
    if (col == Q) row += row_bytes, at = row, col = 0;
  }
};

// kWalks: rows of y are whole sixteens of pixels, and so are tiles.
// kCopiesRows: rows of the image are whole chunks of 16 bytes.
template <typename Config, bool kWalks, bool kCopiesRows>
__global__ void __launch_bounds__(kFewChannelsShortThreads<Config>, 1)
    FewChannelsWgradShortKernel(
        const __grid_constant__ FewChannelsProblem problem) {
  using T = typename Config::T;
  constexpr Contiguous kB = Contiguous::kRows;
  constexpr int kConsumed = Config::kBlocks * kWarpgroup;
  extern __shared__ uint8_t shared[];
  __shared__ uint64_t barriers[kFewChannelsShortBoxes + 1];
  const uint32_t band = (SharedAddress(shared) + 1023) & ~1023u;
  const uint32_t full = SharedAddress(barriers);
  const uint32_t filled = SharedAddress(&barriers[kFewChannelsShortBoxes]);
  const int split = blockIdx.x / problem.n_tiles;
  const int n_tile = blockIdx.x - split * problem.n_tiles;
  const FewChannelsTile tile(problem, split);
  const uint32_t dy =
      band + problem.stage_bytes - (problem.tile + 63) / 64 * kBoxBytes;
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  if (warp == kConsumed / 32) {
    CopyBandAndDy<kCopiesRows>(problem, tile, n_tile, band, dy, full, filled);
    __syncthreads();
    return;
  }
  if constexpr (kCopiesRows) {
    ZeroAround<kConsumed>(problem, tile, band);
    if constexpr (!kWalks) FillTable<kConsumed>(problem, tile, band);
  } else {
    FillBand<kConsumed>(problem, tile, band);
    CopyCommit();
    CopyWait<0>();
  }
  const int m = warp / 4, thread = threadIdx.x % kWarpgroup;
  const int offset[1] = {
      BandPair(problem.layout, m * 32 + thread / 32 * 8 + thread % 32 / 4)
          .offset};
  FewChannelsWalk walk(problem, tile);
  uint32_t table = band + BandBytes(problem);
  auto load = [&](uint32_t (&a)[1][4]) {  // of the next 16 pixels
    if constexpr (kWalks) {
      int from[4];
      walk.Get(from);
      walk.Advance();
      LoadColumnsAt<Config::kOdd, false>(a, band, from, offset);
    } else {
      LoadColumns<Config::kOdd>(a, band, table, offset);
      table += 64;
    }
  };
  float acc[32];
#pragma unroll
  for (float& v : acc) v = 0;
  __syncthreads();
  if constexpr (kCopiesRows) BarrierWait(filled, 0);
  const int pixels = min(problem.tile, problem.pixels - tile.pixel);
  int first = 0;  // of 64 pixels
  for (; first + 64 <= pixels; first += 64) {
    BarrierWait(full + first / 64 * 8, 0);
    const uint64_t b = Descriptor(dy + first * 128);
    // In two halves, so that one is loaded while the other is multiplied.
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t a[2][1][4];
      load(a[0]);
      load(a[1]);
      WgmmaFence();
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        WgmmaRegisters<T, kB, 64>(acc, a[i][0],
                                  b + (2 * half + i) * kReductionStep<kB>);
      }
      WgmmaCommit();
      WgmmaWait<1>();
    }
  }
  WgmmaWait<0>();
  // No more than there is: what lies behind is other tiles'.
  if (first < pixels) BarrierWait(full + first / 64 * 8, 0);
  for (; first < pixels; first += 16) {
    uint32_t a[1][4];
    load(a);
    WgmmaFence();
    WgmmaRegisters<T, kB, 64>(acc, a[0], Descriptor(dy + first * 128));
    WgmmaCommit();
    WgmmaWait<0>();
  }
  // Not before: blocks of the kernel that adds would fill the SMs that have no
  // tile, and leave the others idle.
  LaunchDependents();
  if (!HasFewChannelsQuad(problem.layout, m * 8, thread)) return;
  float4* partial = FewChannelsPartial<Config>(problem, blockIdx.x) +
                    m * 8 * kWarpgroup + thread;
#pragma unroll
  for (int quad = 0; quad < 8; ++quad) {
    partial[quad * kWarpgroup] = make_float4(
        acc[quad * 4], acc[quad * 4 + 1], acc[quad * 4 + 2], acc[quad * 4 + 3]);
  }
}

}  // namespace jax_convbatch::hopper
