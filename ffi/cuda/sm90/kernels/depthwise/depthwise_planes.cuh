// SPDX-License-Identifier: Apache-2.0
// fprop and dgrad of depthwise convolutions as products. Eight neighbouring
// outputs of a channel are the sixteen inputs from the first one's on times a
// band matrix of a row of the filter, [16 x 8]; sixteen such runs of outputs
// are a tensor core's product. A row of the image is multiplied once for each
// row of the filter, into as many rows of sums.
//
// The tensor cores want neighbouring pixels of one channel side by side, so
// rows go through shared memory in planes, one for each channel: stmatrix and
// ldmatrix transpose them on their way in and out.
#pragma once

#include "cuda/common/floats.h"
#include "cuda/sm80/direct/mma.cuh"
#include "cuda/sm80/direct/staging.cuh"
#include "cuda/sm90/kernels/depthwise/depthwise_planes_problem.h"
#include "cuda/sm90/kernels/depthwise/depthwise_planes_rows.cuh"

namespace jax_convbatch::direct {

// What a thread keeps of the filter for two channels: for each row the band
// matrix b[k][n] = w[k - n].
template <typename T, int kTaps>
__device__ void LoadBands(const uint32_t* words,
                          uint32_t (&bands)[kTaps][2][2]) {
  const int n = threadIdx.x % 32 / 4, k = threadIdx.x % 4 * 2;
#pragma unroll
  for (int r = 0; r < kTaps; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t pair[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int s = k + half * 8 + i - n;
        pair[i] = static_cast<unsigned>(s) < kTaps
                      ? words[(r * kTaps + s) * (Planes::kChannels / 2)]
                      : 0;
      }
      bands[r][0][half] = __byte_perm(pair[0], pair[1], 0x5410);
      bands[r][1][half] = __byte_perm(pair[0], pair[1], 0x7632);
    }
  }
}

// One output from its taps that lie in the image, for where a product's zeros
// have met an infinity or nan.
template <typename T, int kTaps>
__device__ float SumOfTaps(const PlanesProblem& p, int sample, int row, int col,
                           int channel) {
  float sum = 0.0f;
  for (int r = 0; r < kTaps; ++r) {
    const int h = row + p.in.origin_h + r;
    if (static_cast<unsigned>(h) >= p.in.height) continue;
    for (int s = 0; s < kTaps; ++s) {
      const int w = col + p.in.origin_w + s;
      if (static_cast<unsigned>(w) >= p.in.width) continue;
      const int tap = p.first_tap + r * p.row_taps + s * p.col_taps;
      const int64_t at =
          ((int64_t{sample} * p.in.height + h) * p.in.width + w) * p.channels +
          channel;
      sum = fmaf(Convert<float>(static_cast<const T*>(p.in.data)[at]),
                 Convert<float>(static_cast<const T*>(
                     p.filter)[tap * p.channels + channel]),
                 sum);
    }
  }
  return sum;
}

template <typename T, int kTaps, int kCopies>
__global__ void __launch_bounds__(Planes::kThreads, 1)
    DepthwisePlanesKernel(const __grid_constant__ PlanesProblem p) {
  constexpr int kPitch = PlanesOfRow<kCopies>::kPitch;
  constexpr int kPlanes = PlanesOfRow<kCopies>::kBytes;
  constexpr int kOutPitch = PlanesOfRow<1>::kPitch;
  constexpr int kOutPlanes = PlanesOfRow<1>::kBytes;
  constexpr int kStages = Planes::kStages;
  extern __shared__ __align__(128) char shared[];
  char* const raw = shared;
  char* const planes = raw + kStages * kCopies * Planes::kRawBytes;
  char* const out = planes + 2 * kPlanes;
  auto* const filter = reinterpret_cast<T*>(out + 2 * kOutPlanes);

  const int channel_tile = blockIdx.x % p.channel_tiles;
  const int worker = blockIdx.x / p.channel_tiles;
  const int first_channel = channel_tile * Planes::kChannels;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  RowCopies<T, kTaps, kCopies, PlanesProblem> copies(p, p.in, raw,
                                                     first_channel, worker);
#pragma unroll
  for (int i = 0; i < kStages; ++i) {
    copies.Next(i);
    CommitCopies();
  }

  for (int i = threadIdx.x; i < kTaps * kTaps * Planes::kChannels;
       i += Planes::kThreads) {
    const int tap = i / Planes::kChannels, c = i % Planes::kChannels;
    const int from =
        p.first_tap + tap / kTaps * p.row_taps + tap % kTaps * p.col_taps;
    filter[i] = first_channel + c < p.channels
                    ? static_cast<const T*>(
                          p.filter)[from * p.channels + first_channel + c]
                    : T(0.0f);
  }
  // The run of zeros of each plane.
  if (threadIdx.x < 2 * Planes::kChannels) {
    *reinterpret_cast<uint4*>(planes + threadIdx.x * kPitch + kPitch -
                              Planes::kRunBytes) = uint4{};
  }
  __syncthreads();
  // Channels 8 t + 2 j and the next of a thread t's eight are plane 8 j + 2 t.
  uint32_t bands[kTaps][2][2];
  LoadBands<T, kTaps>(
      reinterpret_cast<const uint32_t*>(filter) + warp % 4 * 4 + warp / 4,
      bands);

  // What this lane tells ldmatrix and stmatrix.
  uint32_t to_plane =
      SharedAddress(planes) + lane * kPitch + warp * Planes::kRunBytes;
  uint32_t from_plane, to_out, from_out;
  {
    const int run = lane % 16, high = lane / 16;
    const int segment = run / p.runs, at = run % p.runs + high;
    const bool zeros = segment >= p.segments || at >= p.in.runs;
    const int input =
        zeros ? kCopies * Planes::kRuns : segment * p.in.runs + at;
    from_plane =
        SharedAddress(planes) + 2 * warp * kPitch + input * Planes::kRunBytes;
    to_out = SharedAddress(out) + (2 * warp + high) * kOutPitch +
             run * Planes::kRunBytes;
    from_out = SharedAddress(out) + lane * kOutPitch + warp * Planes::kRunBytes;
  }
  const int channel = first_channel + lane % 4 * 8;
  const int out_pitch = p.out_w * p.channels;

  float any = 0.0f;  // nan where one of this thread's sums is
  int stage = 0, buffer = 0;
  float sums[kTaps][2][4] = {};
  WaitForCopies<kStages - 1>();
  ToPlanes<kCopies>(raw, 0, to_plane);
  const int end = min((worker + 1) * p.rows, p.all_rows);
  for (int at = worker * p.rows; at < end;) {
    const Piece piece(p, at, end);
    at += piece.rows;
    // This thread's output of step kTaps - 1, and rows of it that there are.
    const int segment = piece.group * p.segments + warp / p.runs;
    const bool exists = warp / p.runs < p.segments && segment < p.all_segments;
    const SegmentPlace place(p, exists ? segment : 0);
    const int col = place.col + warp % p.runs * Planes::kRun + lane / 4;
    const int rows =
        exists && col < p.out_w && channel < p.channels ? piece.rows : 0;
    T* to = static_cast<T*>(p.result) +
            ((int64_t{place.sample} * p.out_h + piece.row) * p.out_w + col) *
                p.channels +
            channel;
    // Stores the row that the step before has left, row `done` of the piece.
    auto store = [&](int done) {
      uint32_t pixels[4];
      LoadTransposed(pixels, from_out + (buffer ^ 1) * kOutPlanes);
      if (static_cast<unsigned>(done) < rows) {
        *reinterpret_cast<uint4*>(to) =
            uint4{pixels[0], pixels[1], pixels[2], pixels[3]};
      }
      if (done >= 0) to += out_pitch;
    };
    const int steps = piece.rows + kTaps - 1;
    for (int step = 0; step < steps; step += kTaps) {
#pragma unroll
      for (int u = 0; u < kTaps; ++u) {
        if (step + u >= steps) break;
        // Everybody's part of this row is in planes, and everybody has done
        // with the planes of the row before, which the next one takes.
        __syncthreads();
        const int next = stage == kStages - 1 ? 0 : stage + 1;
        // Half of the warps of each scheduler do this before they multiply, so
        // that the tensor cores and the shared memory are busy at once.
        auto move = [&] {
          WaitForCopies<kStages - 2>();
          ToPlanes<kCopies>(raw, next, to_plane + (buffer ^ 1) * kPlanes);
          store(step + u - kTaps);
        };
        if (warp & 4) move();
        uint32_t row[2][4];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          LoadMatrices(row[c], from_plane + buffer * kPlanes + c * kPitch);
        }
#pragma unroll
        for (int c = 0; c < 2; ++c) {
#pragma unroll
          for (int i = 0; i < 4; ++i) sums[u][c][i] = 0.0f;
        }
#pragma unroll
        for (int r = kTaps - 1; r >= 0; --r) {
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            Multiply16<T>(sums[(u - r + kTaps) % kTaps][c], row[c][0],
                          row[c][1], row[c][2], row[c][3], bands[r][c][0],
                          bands[r][c][1]);
          }
        }
        if (!(warp & 4)) move();
        copies.Next(stage);
        CommitCopies();
        stage = next;
        const float (&done)[2][4] = sums[(u + 1) % kTaps];
        uint32_t packed[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float low = done[i / 2][i % 2 * 2];
          const float high = done[i / 2][i % 2 * 2 + 1];
          any += low + high;
          packed[i] = PackPair<T>(low, high);
        }
        StoreMatrices(to_out + buffer * kOutPlanes, packed);
        buffer ^= 1;
      }
    }
    __syncthreads();
    store(piece.rows - 1);
  }
  if (!__syncthreads_or(any != any)) return;
  // Zeros of the bands may have met infinities: nans that this block has
  // stored are formed again, from their taps alone.
  for (int at = worker * p.rows; at < end;) {
    const Piece piece(p, at, end);
    at += piece.rows;
    const int segment = piece.group * p.segments + warp / p.runs;
    if (warp / p.runs >= p.segments || segment >= p.all_segments) continue;
    const SegmentPlace place(p, segment);
    const int col = place.col + warp % p.runs * Planes::kRun + lane / 4;
    if (col >= p.out_w || channel >= p.channels) continue;
    for (int row = piece.row; row < piece.row + piece.rows; ++row) {
      T* const to = static_cast<T*>(p.result) +
                    ((int64_t{place.sample} * p.out_h + row) * p.out_w + col) *
                        p.channels +
                    channel;
      for (int c = 0; c < 8; ++c) {
        const float value = Convert<float>(to[c]);
        if (value != value) {
          to[c] = Convert<T>(
              SumOfTaps<T, kTaps>(p, place.sample, row, col, channel + c));
        }
      }
    }
  }
}

}  // namespace jax_convbatch::direct
