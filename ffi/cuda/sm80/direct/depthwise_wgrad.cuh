// SPDX-License-Identifier: Apache-2.0
// wgrad of depthwise convolutions. Like depthwise.cuh, but a thread keeps the
// sums of a few taps of two channels over all the pixels that it visits.
#pragma once

#include "cuda/sm80/direct/depthwise_problem.h"
#include "cuda/sm80/direct/pairs.cuh"
#include "cuda/sm80/direct/staging.cuh"

namespace jax_convbatch::direct {

template <typename T, int kTaps, int kStep>
struct WgradChunk {
  static constexpr Kind kKind = {kTaps, kStep};
  static constexpr bool kAny = kTaps == 0;
  static constexpr int kSums = ChunkTaps(kKind);
  static constexpr int kBlocks = WgradBlocks(kKind);
  // Of the filter, and of dy.
  static constexpr int kFilterRows = ChunkRows(kKind);
  static constexpr int kRows = WgradRows(kKind, sizeof(T));
  static constexpr int kCols = WgradCols(kKind, sizeof(T));
};

// Adds up kRows x kCols pixels of dy from `dy` on, and the pixels of x that
// they meet, from `x` on.
template <typename T, int kR, int kS, int kStep, int kRows, int kCols>
__device__ void SumPixels(const char* x, int x_row_bytes, const char* dy,
                          int dy_row_bytes, float2 (&sums)[kR * kS]) {
  constexpr int kPixel = kLanes * 2 * sizeof(T);
  constexpr int kWindow = (kCols - 1) * kStep + kS;
  float2 outputs[kRows][kCols];
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
#pragma unroll
    for (int col = 0; col < kCols; ++col) {
      outputs[row][col] = LoadPair<T>(dy + row * dy_row_bytes + col * kPixel);
    }
  }
#pragma unroll
  for (int u = 0; u < (kRows - 1) * kStep + kR; ++u) {
    float2 window[kWindow];
#pragma unroll
    for (int i = 0; i < kWindow; ++i) {
      window[i] = LoadPair<T>(x + u * x_row_bytes + i * kPixel);
    }
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const int r = u - row * kStep;
      if (r < 0 || r >= kR) continue;
#pragma unroll
      for (int s = 0; s < kS; ++s) {
#pragma unroll
        for (int col = 0; col < kCols; ++col) {
          MultiplyAdd(window[col * kStep + s], outputs[row][col],
                      sums[r * kS + s]);
        }
      }
    }
  }
}

template <typename T, int kTaps, int kStep, bool kAligned>
__global__ void __launch_bounds__(kThreads,
                                  WgradChunk<T, kTaps, kStep>::kBlocks)
    DepthwiseWgradKernel(const __grid_constant__ DepthwiseWgradProblem p) {
  using Chunk = WgradChunk<T, kTaps, kStep>;
  constexpr int kStages = kWgradStages;
  constexpr int kPixel = kLanes * 2 * sizeof(T);
  extern __shared__ __align__(128) char shared[];
  const int stage_bytes = p.in.bytes() + p.out.bytes();

  uint32_t block = blockIdx.x;
  const int channel_tile = block % p.channel_tiles;
  block /= p.channel_tiles;
  const int chunk_block = block % p.chunk_blocks;
  const int worker = block / p.chunk_blocks;
  const int first_channel = channel_tile * kLanes * 2;
  const int lane = threadIdx.x % kLanes, slot = threadIdx.x / kLanes;
  // Of this block's chunks, and of the threads that work on it.
  const int chunks = min(p.chunks - chunk_block * kSlots, kSlots);
  const int chunk = slot % chunks, stream = slot / chunks;
  const int streams = min(p.streams, kSlots / chunks);
  const int first_tap = (chunk_block * kSlots + chunk) * Chunk::kSums;
  const int taps = p.h.filter_size * p.w.filter_size;

  // Where a chunk's taps read, from an output's first.
  constexpr int kOffsets = Chunk::kAny ? Chunk::kSums : 1;
  int offsets[kOffsets];
#pragma unroll
  for (int i = 0; i < kOffsets; ++i) {
    const int tap = min(first_tap + i, taps - 1);
    offsets[i] = tap / p.w.filter_size * p.h.offset_step * p.in.row_bytes +
                 tap % p.w.filter_size * p.w.offset_step * kPixel;
  }

  const Stager<T, kAligned> x_stager(p.in, p.x, first_channel);
  const Stager<T, kAligned> dy_stager(p.out, p.dy, first_channel);
  TilePlace places[kStages];
  auto fetch = [&](int tile, int stage, TilePlace& place) {
    if (tile < p.grid.tiles) {
      place = PlaceOf(p.grid, tile);
      char* to = shared + stage * stage_bytes;
      x_stager.Fill(to, place.sample, place.row * p.h.in_step + p.h.origin,
                    place.col * p.w.in_step + p.w.origin);
      dy_stager.Fill(to + p.in.bytes(), place.sample, place.row, place.col);
    }
    CommitCopies();
  };
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) {
    fetch(worker + i * p.workers, i, places[i]);
  }

  float2 sums[Chunk::kSums] = {};
  int stage = 0;
  for (int tile = worker; tile < p.grid.tiles; tile += p.workers) {
    WaitForCopies<kStages - 2>();
    __syncthreads();
    fetch(tile + (kStages - 1) * p.workers,
          stage == 0 ? kStages - 1 : stage - 1, places[kStages - 1]);
    const TilePlace place = places[0];
#pragma unroll
    for (int i = 1; i < kStages; ++i) places[i - 1] = places[i];
    const char* const x_tile =
        shared + stage * stage_bytes + lane * 2 * sizeof(T);
    const char* const dy_tile = x_tile + p.in.bytes();
    const int first = stream < streams ? stream : p.patches;
    for (int patch = first; patch < p.patches; patch += streams) {
      uint32_t rest = patch;
      const int row = TakeDigit(p.patch_rows, rest) * Chunk::kRows;
      const int col = static_cast<int>(rest) * Chunk::kCols;
      // Outputs that do not exist are left out: zeros in their place would
      // meet the infinities of an x that does.
      const int rows = min(Chunk::kRows, p.h.out_size - place.row - row);
      const int cols = min(Chunk::kCols, p.w.out_size - place.col - col);
      const char* x = x_tile + row * p.h.in_step * p.in.row_bytes +
                      col * p.w.in_step * kPixel;
      const char* dy = dy_tile + row * p.out.row_bytes + col * kPixel;
      if constexpr (Chunk::kAny) {
        if (rows <= 0) continue;
        for (int j = 0; j < cols; ++j) {
          const float2 output = LoadPair<T>(dy + j * kPixel);
          const char* at = x + j * p.w.in_step * kPixel;
#pragma unroll
          for (int i = 0; i < Chunk::kSums; ++i) {
            MultiplyAdd(LoadPair<T>(at + offsets[i]), output, sums[i]);
          }
        }
      } else {
        x += offsets[0];
        if (rows == Chunk::kRows && cols == Chunk::kCols) {
          SumPixels<T, Chunk::kFilterRows, kTaps, kStep, Chunk::kRows,
                    Chunk::kCols>(x, p.in.row_bytes, dy, p.out.row_bytes, sums);
          continue;
        }
        for (int i = 0; i < rows; ++i) {
          for (int j = 0; j < cols; ++j) {
            SumPixels<T, Chunk::kFilterRows, kTaps, kStep, 1, 1>(
                x + i * kStep * p.in.row_bytes + j * kStep * kPixel,
                p.in.row_bytes, dy + i * p.out.row_bytes + j * kPixel,
                p.out.row_bytes, sums);
          }
        }
      }
    }
    stage = stage == kStages - 1 ? 0 : stage + 1;
  }
  WaitForCopies<0>();
  __syncthreads();

  // [stream][chunk][tap][channel], in place of the tiles.
  auto* const gathered = reinterpret_cast<float2*>(shared);
  if (stream < streams) {
#pragma unroll
    for (int i = 0; i < Chunk::kSums; ++i) {
      gathered[((stream * chunks + chunk) * Chunk::kSums + i) * kLanes + lane] =
          sums[i];
    }
  }
  __syncthreads();
  const int count = chunks * Chunk::kSums * kTileChannels;
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const int tap = chunk_block * kSlots * Chunk::kSums + i / kTileChannels;
    const int channel = first_channel + i % kTileChannels;
    if (tap >= taps || channel >= p.channels) continue;
    float sum = 0.0f;
    for (int s = 0; s < streams; ++s) {
      sum += reinterpret_cast<const float*>(gathered)[s * count + i];
    }
    p.partials[(int64_t{worker} * taps + tap) * p.channels + channel] = sum;
  }
}

}  // namespace jax_convbatch::direct
