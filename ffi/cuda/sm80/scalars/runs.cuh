// SPDX-License-Identifier: Apache-2.0
// ScalarRunShape's kernel. A stage is eight input channels, of the rows of x
// that the tile reads, each channel a plane of its own, and the filter's part.
// Threads add by slices of taps, stages, channels of their own, rows of taps,
// taps; then the sums of the warps that share the channels are added in order:
// no tile and no batch changes that.
#ifndef JAX_CONVBATCH_CUDA_SM80_SCALARS_RUNS_CUH_
#define JAX_CONVBATCH_CUDA_SM80_SCALARS_RUNS_CUH_

#include <cstdint>

#include "cuda/common/fast_divmod.h"
#include "cuda/sm80/scalars/problem.h"
#include "cuda/sm80/scalars/rows.cuh"
#include "cuda/sm80/scalars/scalars.h"

namespace jax_convbatch::direct {

struct ScalarRunProblem : ScalarWindow, ScalarFilter {
  const float* in;
  float* out;
  int out_height, out_width;
  FastDivmod<uint32_t> across, down, O;  // tiles of a row, of a slice; slices
  FastDivmod<uint32_t> runs;             // of a tile's row
  int tile_rows, x_rows, row, plane, x_floats, stage_floats, pixel_warps;
};

struct ScalarRunTile {
  int slice, row, col;
};

// A stage: eight channels of the slice of x at `d`, and of the filter's slice.
template <int kTaps, int kOutputs>
__device__ __forceinline__ void BringScalarRuns(const ScalarRunProblem& p,
                                                const ScalarRunTile& tile,
                                                int t, int channel0, float* x) {
  const int sample = p.O.Divide(tile.slice);
  const int o = tile.slice - sample * int(p.O.divisor());
  const int d = o * p.stride_d - p.pad_d + t * p.dilation_d;
  const int h = tile.row * p.stride_h - p.pad_h, first = tile.col - p.pad_w;
  const int cols = int(p.runs.divisor()) * kScalarRun + kTaps - 1;
  const int c = threadIdx.x % kScalarChunk, channel = channel0 + c;
  constexpr int kAtOnce = 32 / kScalarChunk;
  for (int row = threadIdx.x / 32; row < p.x_rows; row += blockDim.x / 32) {
    const bool there = unsigned(d) < unsigned(p.depth) &&
                       unsigned(h + row) < unsigned(p.height) &&
                       channel < p.channels;
    int pixel = threadIdx.x % 32 / kScalarChunk;
    const int64_t line =
        there ? (int64_t{sample} * p.depth + d) * p.height + h + row : 0;
    const float* from =
        p.in + (line * p.width + first + pixel) * p.channels + channel;
    float* to = x + c * p.plane + row * p.row + pixel;
#pragma unroll 4
    for (; pixel < cols; pixel += kAtOnce) {
      const bool inside = there && unsigned(first + pixel) < unsigned(p.width);
      CopyFloatsAsync<1>(to, from, inside);
      from += kAtOnce * p.channels, to += kAtOnce;
    }
  }
  // [channel, row of taps, tap, output], rows of taps in fours.
  constexpr int kRow = kTaps * kOutputs, kPadded = (kRow + 3) / 4 * 4;
  const int rows = kScalarChunk * p.taps_r;
  for (int e = threadIdx.x; e < rows * kRow; e += blockDim.x) {
    const int line = e / kRow, i = e - line * kRow;
    const int of = line / p.taps_r, r = line - of * p.taps_r;
    const bool inside = channel0 + of < p.channels;
    const int64_t tap = (int64_t{t} * p.taps_r + r) * kTaps + i / kOutputs;
    CopyFloatsAsync<1>(x + p.x_floats + line * kPadded + i,
                       inside ? p.filter + tap * p.tap_step +
                                    int64_t{channel0 + of} * p.in_step +
                                    i % kOutputs * p.out_step
                              : p.filter,
                       inside);
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int kFloats>
__device__ __forceinline__ void LoadFours(float (&to)[kFloats],
                                          const float* from) {
#pragma unroll
  for (int i = 0; i < kFloats; i += 4) {
    const float4 v = *reinterpret_cast<const float4*>(from + i);
    to[i] = v.x, to[i + 1] = v.y, to[i + 2] = v.z, to[i + 3] = v.w;
  }
}

template <int kTaps, int kOutputs>
__global__ void __launch_bounds__(kScalarRunWarps * 32)
    ScalarRunKernel(const __grid_constant__ ScalarRunProblem p) {
  constexpr int kRead = (kScalarRun + kTaps - 1 + 3) / 4 * 4;
  constexpr int kFilterRow = (kTaps * kOutputs + 3) / 4 * 4;
  extern __shared__ float4 scalar_runs_shared[];
  float* const stages = reinterpret_cast<float*>(scalar_runs_shared);

  const int runs = p.runs.divisor(), tile_cols = runs * kScalarRun;
  uint32_t rest = blockIdx.x;
  ScalarRunTile tile;
  tile.col = TakeDigit(p.across, rest) * tile_cols;
  tile.row = TakeDigit(p.down, rest) * p.tile_rows;
  tile.slice = rest;

  const int part = threadIdx.x / 32 / p.pixel_warps;
  const int i = threadIdx.x - part * p.pixel_warps * 32;
  const int row = p.runs.Divide(i), run = i - row * runs;
  const bool has = row < p.tile_rows;
  const int from = has ? row * p.stride_h * p.row + run * kScalarRun : 0;

  float sums[kScalarRun][kOutputs] = {};
  int t = 0, channel = 0;
  BringScalarRuns<kTaps, kOutputs>(p, tile, t, channel, stages);
  for (int parity = 0; t < p.taps_t; parity ^= 1) {
    const int count = min(kScalarChunk, p.channels - channel);
    channel += kScalarChunk;
    if (channel >= p.channels) channel = 0, ++t;
    if (t < p.taps_t) {
      BringScalarRuns<kTaps, kOutputs>(p, tile, t, channel,
                                       stages + (parity ^ 1) * p.stage_floats);
      asm volatile("cp.async.wait_group 1;" ::: "memory");
    } else {
      asm volatile("cp.async.wait_group 0;" ::: "memory");
    }
    __syncthreads();
    const float* const stage = stages + parity * p.stage_floats;
    for (int c = part; c < count; c += kScalarRunParts) {
      const float* x = stage + c * p.plane + from;
      const float* w = stage + p.x_floats + c * p.taps_r * kFilterRow;
#pragma unroll 1
      for (int r = 0; r < p.taps_r; ++r) {
        float v[kRead], of_filter[kFilterRow];
        LoadFours(v, x);
        LoadFours(of_filter, w);
#pragma unroll
        for (int s = 0; s < kTaps; ++s) {
#pragma unroll
          for (int j = 0; j < kScalarRun; ++j) {
#pragma unroll
            for (int k = 0; k < kOutputs; ++k) {
              sums[j][k] += v[j + s] * of_filter[s * kOutputs + k];
            }
          }
        }
        x += p.dilation_h * p.row, w += kFilterRow;
      }
    }
    __syncthreads();
  }

  // The sums take the stages' place, as a tile for each part.
  const int size = p.tile_rows * tile_cols * kOutputs;
  if (has) {
    float* const own = stages + part * size + i * kScalarRun * kOutputs;
#pragma unroll
    for (int j = 0; j < kScalarRun; ++j) {
#pragma unroll
      for (int k = 0; k < kOutputs; ++k) own[j * kOutputs + k] = sums[j][k];
    }
  }
  __syncthreads();
  const int rows = min(p.tile_rows, p.out_height - tile.row);
  const int floats = min(tile_cols, p.out_width - tile.col) * kOutputs;
  float* const out =
      p.out + ((int64_t{tile.slice} * p.out_height + tile.row) * p.out_width +
               tile.col) *
                  kOutputs;
  for (int line = threadIdx.x / 32; line < rows; line += blockDim.x / 32) {
    for (int e = threadIdx.x % 32; e < floats; e += 32) {
      const float* const found = stages + line * tile_cols * kOutputs + e;
      float sum = found[0];
#pragma unroll
      for (int other = 1; other < kScalarRunParts; ++other) {
        sum += found[other * size];
      }
      out[int64_t{line} * p.out_width * kOutputs + e] = sum;
    }
  }
}

}  // namespace jax_convbatch::direct

#endif  // JAX_CONVBATCH_CUDA_SM80_SCALARS_RUNS_CUH_
