// SPDX-License-Identifier: Apache-2.0
// wgrad of scalars.h. A block has one row of taps, up to eight input and some
// output channels; a thread one tap, one input and four outputs of these. Teams
// of threads share the pixels of a tile, which are brought while those of the
// tile before are multiplied. Each team adds its pixels in order, then the
// teams' sums are added in order, then those of the blocks that share the rows.
#ifndef JAX_CONVBATCH_CUDA_SM80_DIRECT_SCALARS_WGRAD_CUH_
#define JAX_CONVBATCH_CUDA_SM80_DIRECT_SCALARS_WGRAD_CUH_

#include <cstdint>

#include "cuda/sm80/direct/scalars.cuh"

namespace jax_convbatch::direct {

struct ScalarWgradProblem {
  ScalarProblem x;  // `in`, its sizes, how it is read; tiles of it
  const float* dy;
  float* partials;  // [workers, T, R, S, C, K]
  FastDivmod<uint32_t> chunks, blocks_k, filter_rows;
  int outputs, items;  // of a block: its dy's channels, and threads of a team
  int team_threads, teams;
  int row_tiles, row_tiles_each;  // of all, and of a worker
  int dy_floats;
};

__device__ __forceinline__ void BringScalarsOfDy(const ScalarWgradProblem& p,
                                                 int first_row, int col, int k0,
                                                 float* to) {
  const int cols = p.x.cols.divisor();
  for (int row = threadIdx.x / 32; row < p.x.tile_rows;
       row += blockDim.x / 32) {
    const bool there = first_row + row < p.x.out_rows;
    const float* from =
        p.dy + int64_t{first_row + row} * p.x.out_cols * p.x.out_channels;
    for (int e = threadIdx.x % 32; e < cols * p.outputs; e += 32) {
      const int pixel = p.x.outputs.Divide(e), k = e - pixel * p.outputs;
      const bool inside =
          there && col + pixel < p.x.out_cols && k0 + k < p.x.out_channels;
      CopyAsync4(to + row * cols * p.outputs + e,
                 inside
                     ? from + int64_t{col + pixel} * p.x.out_channels + k0 + k
                     : p.dy,
                 inside);
    }
  }
}

__global__ void __launch_bounds__(kScalarMostWarps * 32)
    ScalarWgradKernel(const __grid_constant__ ScalarWgradProblem p) {
  extern __shared__ float4 scalar_wgrad_shared[];
  const ScalarProblem& x = p.x;
  ScalarRow* const rows = reinterpret_cast<ScalarRow*>(scalar_wgrad_shared);
  float* const stages =
      reinterpret_cast<float*>(scalar_wgrad_shared + 2 * x.tile_rows);
  const int stage_floats = x.x_floats + p.dy_floats;

  uint32_t index = blockIdx.x;
  const auto digit = [&](const FastDivmod<uint32_t>& by) {
    const uint32_t rest = by.Divide(index);
    const int found = index - rest * by.divisor();
    index = rest;
    return found;
  };
  const int k0 = digit(p.blocks_k) * p.outputs;
  ScalarStage stage;
  stage.channel = digit(p.chunks) * int(x.chunk.divisor());
  stage.r = digit(p.filter_rows);
  const int worker = index / x.taps_t;
  stage.t = index - worker * x.taps_t;

  const int team = threadIdx.x / p.team_threads;
  const int item = threadIdx.x - team * p.team_threads;
  // Its outputs go first, then channels, then taps.
  const int fours = p.outputs / 4, chunk = x.chunk.divisor();
  const int of = item / fours, four = item - of * fours;
  const int s = of / chunk, c = of - s * chunk;
  const bool has = item < p.items && team < p.teams;
  const int x_at = has ? s * x.dilation_w * x.pitch + c : 0;
  const int dy_at = has ? four * 4 : 0;
  const int cols = x.cols.divisor();

  const int across = x.across.divisor();
  const int first = worker * p.row_tiles_each;
  const int last = min(first + p.row_tiles_each, p.row_tiles);
  const int count = (last - first) * across;
  const auto bring = [&](int tile, int parity) {
    const int down = x.across.Divide(tile);
    const int first_row = (first + down) * x.tile_rows;
    const int col = (tile - down * across) * cols;
    ScalarRow* const of_stage = rows + parity * x.tile_rows;
    for (int i = threadIdx.x; i < x.tile_rows; i += blockDim.x) {
      const uint32_t row = first_row + i;
      const uint32_t slice = x.P.Divide(row), sample = x.O.Divide(slice);
      const int height = row - slice * x.P.divisor();
      const int depth = slice - sample * x.O.divisor();
      of_stage[i] = {int(row) < x.out_rows ? int(sample) : -1,
                     depth * x.stride_d - x.pad_d,
                     height * x.stride_h - x.pad_h};
    }
    __syncthreads();
    float* const to = stages + parity * stage_floats;
    BringScalarsOfDy(p, first_row, col, k0, to + x.x_floats);
    BringScalarRows(x, stage, of_stage, col, to);
    asm volatile("cp.async.commit_group;" ::: "memory");
  };

  float sums[4] = {};
  if (count > 0) bring(0, 0);
  for (int tile = 0; tile < count; ++tile) {
    const int parity = tile & 1;
    if (tile + 1 < count) {
      bring(tile + 1, parity ^ 1);
      asm volatile("cp.async.wait_group 1;" ::: "memory");
    } else {
      asm volatile("cp.async.wait_group 0;" ::: "memory");
    }
    __syncthreads();
    if (has) {
      // What lies beyond a row's end must not meet dy's zeros as a nan.
      const int down = x.across.Divide(tile);
      const int there = min(cols, x.out_cols - (tile - down * across) * cols);
      const float* const of_x = stages + parity * stage_floats + x_at;
      const float* const of_dy =
          stages + parity * stage_floats + x.x_floats + dy_at;
      for (int row = 0; row < x.tile_rows; ++row) {
        const float* from = of_x + row * x.reach * x.pitch;
        const float* with = of_dy + row * cols * p.outputs;
#pragma unroll 4
        for (int q = team; q < there; q += p.teams) {
          const float v = from[q * x.stride_w * x.pitch];
          const float4 d =
              *reinterpret_cast<const float4*>(with + q * p.outputs);
          sums[0] += v * d.x;
          sums[1] += v * d.y;
          sums[2] += v * d.z;
          sums[3] += v * d.w;
        }
      }
    }
    __syncthreads();
  }

  // The teams' sums take the stages' place.
  float4* const joined = reinterpret_cast<float4*>(stages);
  if (has) {
    joined[team * p.items + item] =
        make_float4(sums[0], sums[1], sums[2], sums[3]);
  }
  __syncthreads();
  if (!has || team > 0 || stage.channel + c >= x.channels) return;
  float4 sum = joined[item];
  for (int i = 1; i < p.teams; ++i) {
    const float4 more = joined[i * p.items + item];
    sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
  }
  const int tap = (stage.t * x.taps_r + stage.r) * x.taps_s + s;
  const int64_t size =
      int64_t{x.taps_t} * x.taps_r * x.taps_s * x.channels * x.out_channels;
  const int k = k0 + four * 4;
  float* to = p.partials + worker * size +
              (int64_t{tap} * x.channels + stage.channel + c) * x.out_channels +
              k;
  const float own[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (k + i < x.out_channels) to[i] = own[i];
  }
}

}  // namespace jax_convbatch::direct

#endif  // JAX_CONVBATCH_CUDA_SM80_DIRECT_SCALARS_WGRAD_CUH_
