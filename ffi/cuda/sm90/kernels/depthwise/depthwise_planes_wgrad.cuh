// SPDX-License-Identifier: Apache-2.0
// wgrad of depthwise convolutions as products. Sixteen runs of eight outputs
// are the inner dimension: [16 x 16] inputs, each run's from its first on, by
// [16 x 8] outputs. A filter row's gradient are sums along the diagonals of the
// product, formed once, of the sum over all runs. A row of the image meets the
// rows of dy that the last steps have brought, one for each row of the filter.
#pragma once

#include "cuda/sm80/direct/add_partials.cuh"
#include "cuda/sm90/kernels/depthwise/depthwise_planes_rows.cuh"

namespace jax_convbatch::direct {

template <typename T, int kTaps, int kCopies>
__global__ void __launch_bounds__(Planes::kThreads, 1)
    DepthwisePlanesWgradKernel(const __grid_constant__ PlanesWgradProblem p) {
  constexpr int kPitch = PlanesOfRow<kCopies>::kPitch;
  constexpr int kPlanes = PlanesOfRow<kCopies>::kBytes;
  constexpr int kDyPitch = PlanesOfRow<1>::kPitch;
  constexpr int kDyPlanes = PlanesOfRow<1>::kBytes;
  constexpr int kStages = Planes::kStages;
  extern __shared__ __align__(128) char shared[];
  char* const raw = shared;
  char* const raw_dy = raw + kStages * kCopies * Planes::kRawBytes;
  char* const planes = raw_dy + kStages * Planes::kRawBytes;
  char* const dy_planes = planes + 2 * kPlanes;

  const int channel_tile = blockIdx.x % p.channel_tiles;
  const int worker = blockIdx.x / p.channel_tiles;
  const int first_channel = channel_tile * Planes::kChannels;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  RowCopies<T, kTaps, kCopies, PlanesWgradProblem> x(p, p.x, raw, first_channel,
                                                     worker);
  RowCopies<T, kTaps, 1, PlanesWgradProblem> dy(p, p.dy, raw_dy, first_channel,
                                                worker);
#pragma unroll
  for (int i = 0; i < kStages; ++i) {
    x.Next(i);
    dy.Next(i);
    CommitCopies();
  }
  // The run of zeros of each plane.
  if (threadIdx.x < 2 * Planes::kChannels) {
    *reinterpret_cast<uint4*>(planes + threadIdx.x * kPitch + kPitch -
                              Planes::kRunBytes) = uint4{};
  }

  // What this lane tells ldmatrix and stmatrix.
  const uint32_t to_plane =
      SharedAddress(planes) + lane * kPitch + warp * Planes::kRunBytes;
  const uint32_t to_dy =
      SharedAddress(dy_planes) + lane * kDyPitch + warp * Planes::kRunBytes;
  uint32_t from_x, from_dy;
  {
    const int run = lane / 16 * 8 + lane % 8, high = lane / 8 % 2;
    const int segment = run / p.runs, at = run % p.runs + high;
    const bool zeros = segment >= p.segments || at >= p.x.runs;
    const int input = zeros ? kCopies * Planes::kRuns : segment * p.x.runs + at;
    from_x =
        SharedAddress(planes) + 2 * warp * kPitch + input * Planes::kRunBytes;
    from_dy = SharedAddress(dy_planes) + (2 * warp + lane / 16) * kDyPitch +
              lane % 16 * Planes::kRunBytes;
  }

  int stage = 0, buffer = 0;
  float sums[kTaps][2][4] = {};
  WaitForCopies<kStages - 1>();
  ToPlanes<kCopies>(raw, 0, to_plane);
  ToPlanes<1>(raw_dy, 0, to_dy);
  const int end = min((worker + 1) * p.rows, p.all_rows);
  for (int at = worker * p.rows; at < end;) {
    const Piece piece(p, at, end);
    at += piece.rows;
    uint32_t outputs[kTaps][4] = {};  // the last rows of dy
    const int steps = piece.rows + kTaps - 1;
    for (int step = 0; step < steps; step += kTaps) {
#pragma unroll
      for (int u = 0; u < kTaps; ++u) {
        if (step + u >= steps) break;
        __syncthreads();
        LoadTransposed(outputs[u], from_dy + buffer * kDyPlanes);
        uint32_t row[2][4];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          LoadTransposed(row[c], from_x + buffer * kPlanes + c * kPitch);
        }
        const int next = stage == kStages - 1 ? 0 : stage + 1;
        WaitForCopies<kStages - 2>();
        ToPlanes<kCopies>(raw, next, to_plane + (buffer ^ 1) * kPlanes);
        ToPlanes<1>(raw_dy, next, to_dy + (buffer ^ 1) * kDyPlanes);
#pragma unroll
        for (int r = 0; r < kTaps; ++r) {
          const uint32_t (&met)[4] = outputs[(u - r + kTaps) % kTaps];
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            Multiply16<T>(sums[r][c], row[c][0], row[c][1], row[c][2],
                          row[c][3], met[2 * c], met[2 * c + 1]);
          }
        }
        x.Next(stage);
        dy.Next(stage);
        CommitCopies();
        stage = next;
        buffer ^= 1;
      }
    }
  }
  WaitForCopies<0>();
  __syncthreads();

  // A warp's products, [channel][input][output], in place of its rows.
  auto* const product = reinterpret_cast<float*>(shared) + warp * 2 * 16 * 8;
  const int channel =
      first_channel + warp % 4 * 8 + warp / 4 * 2 + lane / kTaps;
#pragma unroll
  for (int r = 0; r < kTaps; ++r) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        *reinterpret_cast<float2*>(
            product + (c * 16 + half * 8 + lane / 4) * 8 + lane % 4 * 2) =
            float2{sums[r][c][2 * half], sums[r][c][2 * half + 1]};
      }
    }
    __syncwarp();
    if (lane < 2 * kTaps && channel < p.channels) {
      const int s = lane % kTaps;
      const float* const at = product + (lane / kTaps * 16 + s) * 8;
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < 8; ++j) sum += at[j * 9];
      p.partials[(int64_t{worker} * kTaps * kTaps + r * kTaps + s) *
                     p.channels +
                 channel] = sum;
    }
    __syncwarp();
  }
}

// Adds the workers' sums in order. Zeros that stand for outputs that do not
// exist may have met infinities of x: a nan is formed again, from the pairs
// that there are.
template <typename T, int kTaps>
__global__ void __launch_bounds__(kColumns* kTeams)
    FinishPlanesWgrad(const __grid_constant__ PlanesWgradProblem p) {
  __shared__ float sums[kTeams][kColumns];
  const int column = threadIdx.x % kColumns, team = threadIdx.x / kColumns;
  const int teams = blockDim.x / kColumns;
  const int size = kTaps * kTaps * p.channels;
  const int at = blockIdx.x * kColumns + column;
  float sum = SumInOrder(p.workers, size, at, p.partials);
  const bool bad = team == 0 && sum != sum;
  if (__syncthreads_or(bad)) {
    float again = 0.0f;
    if (at < size) {
      const int tap = at / p.channels, channel = at % p.channels;
      const int pixels = p.dy.height * p.dy.width;
      for (int i = team; i < p.batch * pixels; i += teams) {
        const int sample = i / pixels, pixel = i % pixels;
        const int h = pixel / p.dy.width + p.x.origin_h + tap / kTaps;
        const int w = pixel % p.dy.width + p.x.origin_w + tap % kTaps;
        if (static_cast<unsigned>(h) >= p.x.height ||
            static_cast<unsigned>(w) >= p.x.width) {
          continue;
        }
        const int64_t from = (int64_t{sample} * p.x.height + h) * p.x.width + w;
        again = fmaf(Convert<float>(static_cast<const T*>(
                         p.x.data)[from * p.channels + channel]),
                     Convert<float>(static_cast<const T*>(
                         p.dy.data)[int64_t{i} * p.channels + channel]),
                     again);
      }
    }
    sums[team][column] = again;
    __syncthreads();
    if (bad) {
      sum = 0.0f;
      for (int i = 0; i < teams; ++i) sum += sums[i][column];
    }
  }
  if (team == 0 && at < size) static_cast<T*>(p.dw)[at] = Convert<T>(sum);
}

}  // namespace jax_convbatch::direct
