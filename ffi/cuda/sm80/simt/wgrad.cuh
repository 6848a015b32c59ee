// SPDX-License-Identifier: Apache-2.0
// wgrad of f32 on the ordinary cores.
#pragma once

#include "cuda/sm80/simt/tile.cuh"

namespace jax_convbatch::simt {

template <typename T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocksPerSm)
    WgradKernel(const __grid_constant__ WgradProblem p) {
  extern __shared__ float4 shared[];
  float* const ring = reinterpret_cast<float*>(shared);
  const int worker = blockIdx.x / p.tiles;
  const int tile = blockIdx.x - worker * p.tiles;
  const int m_tile = tile / p.n_tiles;
  const int first_row = m_tile * T::kM;
  const int first_channel = (tile - m_tile * p.n_tiles) * T::kN;

  // Four filter rows of x, the same in every step.
  constexpr int kQuadsA = T::kM / 4, kAtOnceA = T::kThreads / kQuadsA;
  const int row = first_row + threadIdx.x % kQuadsA * 4;
  const int tap = row / p.channels, r = tap / p.filter_width;
  const int h = r * p.dilation_h - p.pad_h;
  const int w = (tap - r * p.filter_width) * p.dilation_w - p.pad_w;
  const float* const x = p.x + (row - tap * p.channels);
  const int64_t image = int64_t{p.height} * p.width * p.channels;
  const bool row_there = row < p.filter_rows;
  const int to_a =
      threadIdx.x / kQuadsA * T::kPitchA + threadIdx.x % kQuadsA * 4;

  constexpr int kQuadsB = T::kN / 4, kAtOnceB = T::kThreads / kQuadsB;
  const int channel = first_channel + threadIdx.x % kQuadsB * 4;
  const bool channel_there = channel < p.out_channels;
  const float* const dy = p.dy + channel;
  const int to_b = kDepth * T::kPitchA + threadIdx.x / kQuadsB * T::kPitchB +
                   threadIdx.x % kQuadsB * 4;

  const int64_t all_steps = (p.pixels + kDepth - 1) / kDepth;
  const int begin = static_cast<int>(all_steps * worker / p.workers);
  const int end = static_cast<int>(all_steps * (worker + 1) / p.workers);
  int first = begin * kDepth;
  Sums<T> sums;
  sums.Clear();
  RunStages<T>(
      ring, end - begin, sums,
      [&](float* stage) {
        const uint32_t a = SharedAddress(stage + to_a);
#pragma unroll
        for (int k = 0; k < kDepth; k += kAtOnceA) {
          const int pixel = first + threadIdx.x / kQuadsA + k;
          const int line = pixel / p.cols, n = line / p.rows;
          const int y = (line - n * p.rows) * p.stride_h + h;
          const int z = (pixel - line * p.cols) * p.stride_w + w;
          const bool there = row_there && pixel < p.pixels &&
                             static_cast<unsigned>(y) < p.height &&
                             static_cast<unsigned>(z) < p.width;
          Copy16(a + k * T::kPitchA * 4,
                 x + n * image + (y * p.width + z) * p.channels, there);
        }
        const uint32_t b = SharedAddress(stage + to_b);
#pragma unroll
        for (int k = 0; k < kDepth; k += kAtOnceB) {
          const int pixel = first + threadIdx.x / kQuadsB + k;
          Copy16(b + k * T::kPitchB * 4, dy + int64_t{pixel} * p.out_channels,
                 channel_there && pixel < p.pixels);
        }
        first += kDepth;
      },
      [](int) {});

  float* const dw = p.dw + int64_t{worker} * p.filter_rows * p.out_channels;
#pragma unroll
  for (int i = 0; i < T::kRows; ++i) {
    const int at = first_row + T::Row(i);
#pragma unroll
    for (int j = 0; j < T::kCols; j += 4) {
      const int k = first_channel + T::Col(j);
      if (at >= p.filter_rows || k >= p.out_channels) continue;
      const float* const v = sums.at[i] + j;
      *reinterpret_cast<float4*>(dw + int64_t{at} * p.out_channels + k) =
          make_float4(v[0], v[1], v[2], v[3]);
    }
  }
}

}  // namespace jax_convbatch::simt
