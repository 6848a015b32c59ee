// SPDX-License-Identifier: Apache-2.0
// wgrad of scalars.h. A tile is some rows and columns of the outputs of a
// slice; x with what the taps reach, and dy, are brought while the tile before
// is multiplied. Each warp has a part of dw: some taps and inputs, by some
// outputs. A thread has all sums of this part in registers. It goes down a
// column of outputs, and loads a row of x once for the taps above each other
// that read it. Neighbouring threads have neighbouring columns, in different
// banks. Then threads' sums are added in order, then those of warps that share
// the pixels, then those of the blocks.
#ifndef JAX_CONVBATCH_CUDA_SM80_SCALARS_WGRAD_CUH_
#define JAX_CONVBATCH_CUDA_SM80_SCALARS_WGRAD_CUH_

#include <cstdint>

#include "cuda/common/fast_divmod.h"
#include "cuda/sm80/scalars/problem.h"
#include "cuda/sm80/scalars/rows.cuh"
#include "cuda/sm80/scalars/wgrad.h"

namespace jax_convbatch::direct {

struct ScalarWgradProblem : ScalarWindow {
  const float *in, *dy;
  float* partials;  // [workers, T, R, S, C, K]
  int out_height, out_width, out_channels;
  ScalarRows of_x, of_dy;
  FastDivmod<uint32_t> across, down, O;  // tiles of a row, of a slice; slices
  FastDivmod<uint32_t> cols;             // of a tile
  int tile_rows, x_rows, x_floats, stage_floats;
  int tiles, workers;
  int filter_rows, row_groups, chunks, part_groups, block_parts, parts_k;
  int slices, run;
};

// Outputs of a slice.
struct ScalarTile {
  int slice, row, col;
};

__device__ __forceinline__ ScalarTile ScalarTileOf(const ScalarWgradProblem& p,
                                                   uint32_t tile) {
  const int col = TakeDigit(p.across, tile) * int(p.cols.divisor());
  const int row = TakeDigit(p.down, tile) * p.tile_rows;
  return {int(tile), row, col};
}

// What the tile reads of x, taps from row r on of slice t of the filter and
// channels from `channel` on, and of dy.
__device__ __forceinline__ void BringScalarTile(const ScalarWgradProblem& p,
                                                const ScalarTile& tile, int t,
                                                int r, int channel, float* to) {
  const int sample = p.O.Divide(tile.slice);
  const int o = tile.slice - sample * int(p.O.divisor());
  const int d = o * p.stride_d - p.pad_d + t * p.dilation_d;
  const int h = tile.row * p.stride_h - p.pad_h + r * p.dilation_h;
  const bool slice = unsigned(d) < unsigned(p.depth);
  const int rows = p.x_rows + min(p.tile_rows, p.out_height - tile.row);
  for (int row = threadIdx.x / 32; row < rows; row += blockDim.x / 32) {
    if (row < p.x_rows) {
      const bool there = slice && unsigned(h + row) < unsigned(p.height);
      const int64_t at =
          there ? (int64_t{sample} * p.depth + d) * p.height + h + row : 0;
      BringScalarRow(p.of_x, p.in + at * p.width * p.channels, there,
                     tile.col * p.stride_w - p.pad_w, channel,
                     to + row * p.of_x.row);
    } else {
      const int i = row - p.x_rows;
      const int64_t at = int64_t{tile.slice} * p.out_height + tile.row + i;
      BringScalarRow(p.of_dy, p.dy + at * p.out_width * p.out_channels, true,
                     tile.col, 0, to + p.x_floats + i * p.of_dy.row);
    }
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// A column of kColumns numbers of x for each row of a window, and where they
// lie from a pixel on.
template <int kColumns>
__device__ __forceinline__ void LoadColumns(float (&to)[kColumns],
                                            const float* x,
                                            const int (&offset)[kColumns]) {
#pragma unroll
  for (int i = 0; i < kColumns; ++i) to[i] = x[offset[i]];
}

template <int kWindow, int kOutputs>
__global__ void __launch_bounds__(kScalarWgradWarps * 32, kScalarWgradBlocks)
    ScalarWgradKernel(const __grid_constant__ ScalarWgradProblem p) {
  constexpr int kColumns = kScalarWgradColumns<kWindow, kOutputs>;
  constexpr int kSums = kWindow * kColumns * kOutputs;
  extern __shared__ float4 scalar_wgrad_shared[];
  float* const stages = reinterpret_cast<float*>(scalar_wgrad_shared);

  int group = blockIdx.x % (gridDim.x / p.workers);
  const int worker = blockIdx.x / (gridDim.x / p.workers);
  const int part_group = group % p.part_groups;
  group /= p.part_groups;
  const int chunk = p.of_x.chunk.divisor(), channel = group % p.chunks * chunk;
  group /= p.chunks;
  const int r = group % p.row_groups * p.filter_rows;
  const int t = group / p.row_groups;

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int slice = warp / p.block_parts;
  const int part = part_group * p.block_parts + warp % p.block_parts;
  // Its first column, windows first, then taps of a row, and output.
  const int row_columns = p.taps_s * chunk;
  const int filter_rows = min(p.filter_rows, p.taps_r - r);
  const int columns = (filter_rows + kWindow - 1) / kWindow * row_columns;
  const int column0 = part / p.parts_k * kColumns;
  const int k0 = part % p.parts_k * kOutputs;
  int offset[kColumns];
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const int column = column0 + i;
    const int window = column / row_columns;
    const int s = (column - window * row_columns) / chunk;
    const int c = column - window * row_columns - s * chunk;
    offset[i] = column < columns
                    ? window * kWindow * p.dilation_h * p.of_x.row +
                          s * p.dilation_w * p.of_x.pixel + c
                    : 0;
  }
  const int x_step = p.stride_h * p.of_x.row;

  float sums[kWindow][kColumns][kOutputs] = {};
  const int cols = p.cols.divisor();
  const auto bring = [&](int tile, int parity) {
    BringScalarTile(p, ScalarTileOf(p, tile), t, r, channel,
                    stages + parity * p.stage_floats);
  };
  bring(worker, 0);
  int parity = 0;
  for (int tile = worker; tile < p.tiles; tile += p.workers) {
    if (tile + p.workers < p.tiles) {
      bring(tile + p.workers, parity ^ 1);
      asm volatile("cp.async.wait_group 1;" ::: "memory");
    } else {
      asm volatile("cp.async.wait_group 0;" ::: "memory");
    }
    __syncthreads();
    const ScalarTile at = ScalarTileOf(p, tile);
    const int tile_rows = min(p.tile_rows, p.out_height - at.row);
    const int tile_cols = p.out_width - at.col;
    const float* const tile_x = stages + parity * p.stage_floats +
                                p.of_x.shift(at.col * p.stride_w - p.pad_w);
    const float* const tile_dy = stages + parity * p.stage_floats + p.x_floats +
                                 p.of_dy.shift(at.col) + k0;
    for (int i = slice * 32 + lane; column0 < columns; i += p.slices * 32) {
      const int down = p.cols.Divide(i), col = i - down * cols;
      const int row = down * p.run;
      if (row >= tile_rows) break;
      // What lies beyond a row's end must not meet zeros as a nan.
      if (col >= tile_cols) continue;
      const float* x = tile_x + row * x_step + col * p.stride_w * p.of_x.pixel;
      const float* dy = tile_dy + row * p.of_dy.row + col * p.of_dy.pixel;
      float window[kWindow][kColumns];
#pragma unroll
      for (int w = 0; w < kWindow - 1; ++w, x += x_step) {
        LoadColumns(window[w], x, offset);
      }
      for (int left = min(p.run, tile_rows - row); left > 0; left -= kWindow) {
#pragma unroll
        for (int u = 0; u < kWindow; ++u) {
          if (u >= left) break;
          LoadColumns(window[(u + kWindow - 1) % kWindow], x, offset);
          float of_dy[kOutputs];
#pragma unroll
          for (int k = 0; k < kOutputs; ++k) of_dy[k] = dy[k];
          x += x_step, dy += p.of_dy.row;
#pragma unroll
          for (int w = 0; w < kWindow; ++w) {
#pragma unroll
            for (int i = 0; i < kColumns; ++i) {
#pragma unroll
              for (int k = 0; k < kOutputs; ++k) {
                sums[w][i][k] += window[(u + w) % kWindow][i] * of_dy[k];
              }
            }
          }
        }
      }
    }
    __syncthreads();
    parity ^= 1;
  }

  // The warps' sums take the stages' place.
#pragma unroll
  for (int e = 0; e < kSums; ++e) {
    float sum =
        sums[e / (kColumns * kOutputs)][e / kOutputs % kColumns][e % kOutputs];
#pragma unroll
    for (int lanes = 16; lanes >= 1; lanes /= 2) {
      sum += __shfl_xor_sync(~0u, sum, lanes);
    }
    if (lane == 0) stages[warp * kSums + e] = sum;
  }
  __syncthreads();
  const int64_t tap_floats = int64_t{p.channels} * p.out_channels;
  const int64_t size = p.taps_t * p.taps_r * p.taps_s * tap_floats;
  float* const to =
      p.partials + worker * size + (t * p.taps_r + r) * p.taps_s * tap_floats;
  const int count = p.block_parts * kSums;
  for (int e = threadIdx.x; e < count; e += blockDim.x) {
    const int of = part_group * p.block_parts + e / kSums;
    const int column = of / p.parts_k * kColumns + e / kOutputs % kColumns;
    const int k = of % p.parts_k * kOutputs + e % kOutputs;
    const int window = column / row_columns;
    const int row = window * kWindow + e % kSums / (kColumns * kOutputs);
    const int s = (column - window * row_columns) / chunk;
    const int c = channel + column - window * row_columns - s * chunk;
    if (row >= filter_rows || k >= p.out_channels || c >= p.channels) continue;
    float sum = stages[e];
    for (int i = 1; i < p.slices; ++i) sum += stages[i * count + e];
    to[(row * p.taps_s + s) * tap_floats + c * p.out_channels + k] = sum;
  }
}

}  // namespace jax_convbatch::direct

#endif  // JAX_CONVBATCH_CUDA_SM80_SCALARS_WGRAD_CUH_
