// SPDX-License-Identifier: Apache-2.0
// A block brings, for one row of taps and up to eight input channels at a time,
// the row of x that each row of its tile reads, and the filter's part, while it
// multiplies those before. A warp's threads have neighbouring pixels, so that
// they find what they read in different banks, and the filter in one place.
// Sums are added by taps' rows, chunks of channels, taps, channels: no tile and
// no batch changes that.
#ifndef JAX_CONVBATCH_CUDA_SM80_SCALARS_SCALARS_CUH_
#define JAX_CONVBATCH_CUDA_SM80_SCALARS_SCALARS_CUH_

#include <cstdint>

#include "cuda/common/fast_divmod.h"
#include "cuda/sm80/scalars/problem.h"
#include "cuda/sm80/scalars/rows.cuh"
#include "cuda/sm80/scalars/scalars.h"

namespace jax_convbatch::direct {

struct ScalarProblem : ScalarWindow, ScalarFilter {
  const float* in;
  float* out;
  int out_rows, out_cols, out_channels;
  FastDivmod<uint32_t> P, O;     // rows of a slice, slices of a sample
  FastDivmod<uint32_t> across;   // tiles of a row
  FastDivmod<uint32_t> cols;     // outputs of a tile's row
  FastDivmod<uint32_t> chunk;    // channels of a stage
  FastDivmod<uint32_t> outputs;  // padded
  FastDivmod<uint32_t> channel_warps;
  int tile_rows, reach, pitch, x_floats, w_floats;
};

// An output row: where its first tap reads, -1 for a row that is not there.
struct ScalarRow {
  int sample, depth, height;
};

// A row of taps and a chunk of channels.
struct ScalarStage {
  int t = 0, r = 0, channel = 0;

  // False after the last.
  __device__ bool Next(const ScalarProblem& p) {
    channel += p.chunk.divisor();
    if (channel < p.channels) return true;
    channel = 0;
    if (++r < p.taps_r) return true;
    r = 0;
    return ++t < p.taps_t;
  }
};

// The rows of x, of a chunk of channels, that a row of taps reads.
__device__ __forceinline__ void BringScalarRows(const ScalarProblem& p,
                                                const ScalarStage& s,
                                                const ScalarRow* rows, int col,
                                                float* x) {
  const int chunk = p.chunk.divisor();
  const int first = col * p.stride_w - p.pad_w;
  for (int row = threadIdx.x / 32; row < p.tile_rows; row += blockDim.x / 32) {
    const ScalarRow& at = rows[row];
    const int d = at.depth + s.t * p.dilation_d;
    const int h = at.height + s.r * p.dilation_h;
    const bool there = at.sample >= 0 && unsigned(d) < unsigned(p.depth) &&
                       unsigned(h) < unsigned(p.height);
    const float* from =
        p.in + ((int64_t{at.sample} * p.depth + d) * p.height + h) * p.width *
                   p.channels;
    for (int e = threadIdx.x % 32; e < p.reach * chunk; e += 32) {
      const int pixel = p.chunk.Divide(e), c = e - pixel * chunk;
      const int v = first + pixel, channel = s.channel + c;
      const bool inside =
          there && unsigned(v) < unsigned(p.width) && channel < p.channels;
      CopyFloatsAsync<1>(
          x + (row * p.reach + pixel) * p.pitch + c,
          inside ? from + int64_t{v} * p.channels + channel : p.in, inside);
    }
  }
}

// The same, and the filter's part.
__device__ __forceinline__ void BringScalars(const ScalarProblem& p,
                                             const ScalarStage& s,
                                             const ScalarRow* rows, int col,
                                             float* x, float* w) {
  BringScalarRows(p, s, rows, col, x);
  const int outputs = p.outputs.divisor(), chunk = p.chunk.divisor();
  const int tap = (s.t * p.taps_r + s.r) * p.taps_s;
  for (int e = threadIdx.x; e < p.w_floats; e += blockDim.x) {
    const int of = p.outputs.Divide(e), k = e - of * outputs;
    const int step = p.chunk.Divide(of),
              channel = s.channel + of - step * chunk;
    const bool inside = k < p.out_channels && channel < p.channels;
    CopyFloatsAsync<1>(w + e,
                       inside ? p.filter + (tap + step) * p.tap_step +
                                    channel * p.in_step + k * p.out_step
                              : p.filter,
                       inside);
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// kOutputs neighbouring numbers.
template <int kOutputs>
__device__ __forceinline__ void LoadFilter(float (&to)[kOutputs],
                                           const float* from) {
  if constexpr (kOutputs % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kOutputs; i += 4) {
      const float4 v = *reinterpret_cast<const float4*>(from + i);
      to[i] = v.x, to[i + 1] = v.y, to[i + 2] = v.z, to[i + 3] = v.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) to[i] = from[i];
  }
}

template <int kOutputs>
__global__ void __launch_bounds__(kScalarMostWarps * 32)
    ScalarKernel(const __grid_constant__ ScalarProblem p) {
  constexpr int kPixels = kScalarPixels<kOutputs>;
  extern __shared__ float4 scalar_shared[];
  ScalarRow* const rows = reinterpret_cast<ScalarRow*>(scalar_shared);
  float* const stages = reinterpret_cast<float*>(scalar_shared + p.tile_rows);
  const int stage_floats = p.x_floats + p.w_floats;

  const uint32_t down = p.across.Divide(blockIdx.x);
  const int tile_cols = p.cols.divisor();
  const int first_row = down * p.tile_rows;
  const int col = (blockIdx.x - down * p.across.divisor()) * tile_cols;
  for (int i = threadIdx.x; i < p.tile_rows; i += blockDim.x) {
    const uint32_t row = first_row + i;
    const uint32_t slice = p.P.Divide(row), sample = p.O.Divide(slice);
    const int height = row - slice * p.P.divisor();
    const int depth = slice - sample * p.O.divisor();
    rows[i] = {int(row) < p.out_rows ? int(sample) : -1,
               depth * p.stride_d - p.pad_d, height * p.stride_h - p.pad_h};
  }
  __syncthreads();

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int pixel_warp = p.channel_warps.Divide(warp);
  const int channel =
      (warp - pixel_warp * p.channel_warps.divisor()) * kOutputs;
  // Where each pixel's first is, and its place in the result.
  int from[kPixels], place[kPixels];
#pragma unroll
  for (int j = 0; j < kPixels; ++j) {
    const int i = (pixel_warp * kPixels + j) * 32 + lane;
    const int row = p.cols.Divide(i), at = i - row * tile_cols;
    const bool there = row < p.tile_rows && first_row + row < p.out_rows &&
                       col + at < p.out_cols;
    from[j] = there ? (row * p.reach + at * p.stride_w) * p.pitch : 0;
    place[j] = there ? row * p.out_cols + col + at : -1;
  }

  float sums[kPixels][kOutputs] = {};
  ScalarStage next;
  BringScalars(p, next, rows, col, stages, stages + p.x_floats);
  bool more = true;
  for (int parity = 0; more; parity ^= 1) {
    const int count = min(int(p.chunk.divisor()), p.channels - next.channel);
    more = next.Next(p);
    if (more) {
      float* to = stages + (parity ^ 1) * stage_floats;
      BringScalars(p, next, rows, col, to, to + p.x_floats);
      asm volatile("cp.async.wait_group 1;" ::: "memory");
    } else {
      asm volatile("cp.async.wait_group 0;" ::: "memory");
    }
    __syncthreads();
    const float* x = stages + parity * stage_floats;
    const float* w = x + p.x_floats + channel;
    for (int s = 0; s < p.taps_s; ++s) {
#pragma unroll 4
      for (int c = 0; c < count; ++c) {
        float of_filter[kOutputs];
        LoadFilter(of_filter, w + c * int(p.outputs.divisor()));
#pragma unroll
        for (int j = 0; j < kPixels; ++j) {
          const float v = x[from[j] + c];
#pragma unroll
          for (int k = 0; k < kOutputs; ++k) sums[j][k] += v * of_filter[k];
        }
      }
      x += p.dilation_w * p.pitch;
      w += int(p.chunk.divisor()) * int(p.outputs.divisor());
    }
    __syncthreads();
  }

  float* const out = p.out + int64_t{first_row} * p.out_cols * p.out_channels;
#pragma unroll
  for (int j = 0; j < kPixels; ++j) {
    if (place[j] < 0) continue;
    float* to = out + int64_t{place[j]} * p.out_channels + channel;
#pragma unroll
    for (int k = 0; k < kOutputs; ++k) {
      if (channel + k < p.out_channels) to[k] = sums[j][k];
    }
  }
}

}  // namespace jax_convbatch::direct

#endif  // JAX_CONVBATCH_CUDA_SM80_SCALARS_SCALARS_CUH_
