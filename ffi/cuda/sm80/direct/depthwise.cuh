// SPDX-License-Identifier: Apache-2.0
// fprop and dgrad of depthwise convolutions. A block keeps one range of
// channels and goes through tiles of the batch: while it works on one, the next
// is on its way into shared memory. A thread computes a patch of pixels of two
// channels, so that what it reads serves several sums.
#pragma once

#include "cuda/common/dtypes.h"
#include "cuda/sm80/direct/depthwise_problem.h"
#include "cuda/sm80/direct/depthwise_strided.cuh"
#include "cuda/sm80/direct/pairs.cuh"
#include "cuda/sm80/direct/staging.cuh"

namespace jax_convbatch::direct {

template <typename T, int kTaps, int kStep, int kLonger, int kLanesOf>
struct Patch {
  static constexpr Kind kKind = {kTaps, kStep, kLonger};
  static constexpr bool kAny = kTaps == 0, kStrided = kLonger >= 0;
  static constexpr int kRows = PatchRows(kKind, sizeof(T));
  static constexpr int kCols = PatchCols(kKind, sizeof(T));
  static constexpr int kLanes = kLanesOf, kSlots = kThreads / kLanes;
  static constexpr int kPixel = kLanes * 2 * sizeof(T);
  static constexpr int kStages = PatchStages(kKind, sizeof(T));
  static constexpr int kBlocks = PatchBlocks(kKind, sizeof(T));
  // Few enough for registers.
  static constexpr bool kWeightsStay = kTaps == 3;
  static constexpr int kWeights = kWeightsStay ? kTaps * kTaps : 1;
};

// The specialised patch: sums[row][col] over rows and columns of the filter.
template <typename P, typename T, int kTaps, int kStep>
__device__ void SumPatch(const char* at, int row_bytes, const float2* weights,
                         const float2 (&kept)[P::kWeights], int row_taps,
                         int col_taps, float2 (&sums)[P::kRows][P::kCols]) {
  constexpr int kPixel = P::kPixel;
  constexpr int kWindow = (P::kCols - 1) * kStep + kTaps;
#pragma unroll
  for (int u = 0; u < (P::kRows - 1) * kStep + kTaps; ++u) {
    float2 window[kWindow];
#pragma unroll
    for (int i = 0; i < kWindow; ++i) {
      window[i] = LoadPair<T>(at + u * row_bytes + i * kPixel);
    }
#pragma unroll
    for (int row = 0; row < P::kRows; ++row) {
      const int r = u - row * kStep;
      if (r < 0 || r >= kTaps) continue;
#pragma unroll
      for (int s = 0; s < kTaps; ++s) {
        float2 weight;
        if constexpr (P::kWeightsStay) {
          weight = kept[r * kTaps + s];
        } else {
          weight = weights[(r * row_taps + s * col_taps) * P::kLanes];
        }
#pragma unroll
        for (int col = 0; col < P::kCols; ++col) {
          MultiplyAdd(window[col * kStep + s], weight, sums[row][col]);
        }
      }
    }
  }
}

// Some taps of a class in a row.
struct TapRange {
  int begin, end;
};

// The taps of `count` that meet the image, for outputs whose first tap reads
// inputs from `first` to `last`. Of a large filter over a small image they are
// few: 14 of 31 rows at 14 pixels.
__device__ inline TapRange MeetingTaps(const AxisWalk& walk, int count,
                                       int first, int last) {
  if (walk.offset_step != 1) return {0, count};
  return {min(max(0, -last), count), min(count, walk.in_size - first)};
}

// One row of outputs with any taps of which neighbours read neighbouring
// pixels: a thread keeps the pixels that a tap reads in registers, and loads
// one more for the next tap.
template <typename T, int kLanes, int kCols>
__device__ void SumSliding(const char* at, const DepthwiseProblem& p,
                           const float2* weights, TapRange rows, TapRange cols,
                           float2 (&sums)[1][kCols]) {
  constexpr int kPixel = kLanes * 2 * sizeof(T);
  const int next_weight = p.w.tap_step * kLanes;
  at += cols.begin * kPixel;
  weights += cols.begin * next_weight;
  const int count = cols.end - cols.begin;
  for (int r = rows.begin; r < rows.end; ++r) {
    const float2* weight =
        weights + r * p.h.tap_step * p.w.filter_size * kLanes;
    const char* row = at + r * p.h.offset_step * p.in.row_bytes;
    float2 window[kCols];  // pixel i of the row is at i % kCols
#pragma unroll
    for (int i = 0; i < kCols - 1; ++i) {
      window[i] = LoadPair<T>(row + i * kPixel);
    }
    row += (kCols - 1) * kPixel;
    for (int s = 0; s < count; s += kCols) {
#pragma unroll
      for (int i = 0; i < kCols; ++i) {
        if (s + i < count) {
          window[(i + kCols - 1) % kCols] = LoadPair<T>(row + i * kPixel);
          const float2 factor = weight[i * next_weight];
#pragma unroll
          for (int col = 0; col < kCols; ++col) {
            MultiplyAdd(window[(i + col) % kCols], factor, sums[0][col]);
          }
        }
      }
      weight += kCols * next_weight;
      row += kCols * kPixel;
    }
  }
}

// One row of outputs with any taps.
template <typename T, int kLanes, int kCols>
__device__ void SumAny(const char* at, const DepthwiseProblem& p,
                       const float2* weights, TapRange rows, TapRange cols,
                       float2 (&sums)[1][kCols]) {
  constexpr int kPixel = kLanes * 2 * sizeof(T);
  const int step = p.w.in_step * kPixel;
  at += cols.begin * p.w.offset_step * kPixel;
  weights += cols.begin * p.w.tap_step * kLanes;
  for (int r = rows.begin; r < rows.end; ++r) {
    const float2* weight =
        weights + r * p.h.tap_step * p.w.filter_size * kLanes;
    const char* row = at + r * p.h.offset_step * p.in.row_bytes;
    for (int s = cols.begin; s < cols.end; ++s) {
#pragma unroll
      for (int col = 0; col < kCols; ++col) {
        MultiplyAdd(LoadPair<T>(row + col * step), *weight, sums[0][col]);
      }
      weight += p.w.tap_step * kLanes;
      row += p.w.offset_step * kPixel;
    }
  }
}

template <typename T, int kTaps, int kStep, int kLonger, int kLanes,
          bool kAligned>
__global__ void __launch_bounds__(
    kThreads, Patch<T, kTaps, kStep, kLonger, kLanes>::kBlocks)
    DepthwiseKernel(const __grid_constant__ DepthwiseProblem p) {
  using P = Patch<T, kTaps, kStep, kLonger, kLanes>;
  constexpr int kStages = P::kStages;
  constexpr int kPixel = P::kPixel, kSlots = P::kSlots;
  constexpr int kTileChannels = kLanes * 2;
  extern __shared__ __align__(128) char shared[];
  char* const tiles = shared;
  const int stage_bytes = p.in.bytes();
  auto* const weights =
      reinterpret_cast<float2*>(shared + kStages * stage_bytes);

  const int channel_tile = blockIdx.x % p.channel_tiles;
  const int worker = blockIdx.x / p.channel_tiles;
  const int first_channel = channel_tile * kTileChannels;
  const int lane = threadIdx.x % kLanes, slot = threadIdx.x / kLanes;
  const int channel = first_channel + lane * 2;

  const Stager<T, kAligned> stager(p.in, p.source, first_channel);
  // The places of the tiles in the stages, the one in use first.
  TilePlace places[kStages];
  auto fetch = [&](int tile, int stage, TilePlace& place) {
    if (tile < p.grid.tiles) {
      place = PlaceOf(p.grid, tile);
      stager.Fill(tiles + stage * stage_bytes, place.sample,
                  place.row * p.h.in_step + p.h.origin,
                  place.col * p.w.in_step + p.w.origin);
    }
    CommitCopies();
  };
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) {
    fetch(worker + i * p.workers, i, places[i]);
  }

  const int taps = p.h.filter_size * p.w.filter_size;
  const auto* filter = static_cast<const T*>(p.filter);
  bool finite = true;
  for (int i = threadIdx.x; i < taps * kTileChannels; i += kThreads) {
    const int tap = i / kTileChannels, c = first_channel + i % kTileChannels;
    const float weight =
        c < p.channels ? Convert<float>(filter[int64_t{tap} * p.channels + c])
                       : 0.0f;
    reinterpret_cast<float*>(weights)[i] = weight;
    finite = finite && isfinite(weight);
  }
  // What is beside the image is zero, and left out if the products are.
  bool clipped = false;
  if constexpr (P::kAny) {
    clipped = __syncthreads_and(finite);
  } else {
    __syncthreads();
  }
  // In the order of the walk.
  const int col_taps = p.w.tap_step, row_taps = p.h.tap_step * p.w.filter_size;
  const float2* const first_weight =
      weights + lane +
      (P::kStrided ? 0
                   : p.h.taps[0].first * p.w.filter_size + p.w.taps[0].first) *
          kLanes;
  float2 kept[P::kWeights];
  if constexpr (P::kWeightsStay) {
#pragma unroll
    for (int i = 0; i < P::kWeights; ++i) {
      kept[i] =
          P::kStrided
              ? first_weight[i * kLanes]
              : first_weight[(i / kTaps * row_taps + i % kTaps * col_taps) *
                             kLanes];
    }
  }

  // Of this thread; where pixels are aligned to 16 bytes, so are whole pairs.
  const int left = p.channels - channel;
  // Where the kind is known, a thread has the same patch of every tile.
  uint32_t rest = slot;
  int row = TakeDigit(p.patch_rows, rest) * P::kRows;
  int col = TakeDigit(p.patch_cols, rest) * P::kCols;
  int class_w = 0, class_h = 0, stage = 0;
  for (int tile = worker; tile < p.grid.tiles; tile += p.workers) {
    WaitForCopies<kStages - 2>();
    // Everybody's copies are there, and everybody has done with the tile
    // before, whose place the next copies take.
    __syncthreads();
    fetch(tile + (kStages - 1) * p.workers,
          stage == 0 ? kStages - 1 : stage - 1, places[kStages - 1]);
    const TilePlace place = places[0];
#pragma unroll
    for (int i = 1; i < kStages; ++i) places[i - 1] = places[i];
    T* const result =
        static_cast<T*>(p.result) +
        int64_t{place.sample} * p.h.out_size * p.w.out_size * p.channels +
        channel;
    const char* const origin =
        tiles + stage * stage_bytes + lane * 2 * sizeof(T);
    if constexpr (P::kStrided) {
      if (slot < p.patches) {
        StridedSums<P::kRows, P::kCols> sums = {};
        SumStrided<T, kTaps, kLonger, P::kRows, P::kCols, kLanes,
                   P::kWeightsStay>(
            origin + row * p.in.row_bytes + col * kPixel, p.in.row_bytes,
            first_weight, kept, sums);
        const int h = (place.row + row) * 2, w = (place.col + col) * 2;
        StoreStrided<T, P::kRows, P::kCols>(
            sums, result + (h * p.w.out_size + w) * p.channels,
            p.w.out_size * p.channels, p.channels, p.h.out_size - h,
            left > 0 ? p.w.out_size - w : 0);
      }
    } else {
      for (int patch = slot; patch < p.patches; patch += kSlots) {
        if constexpr (P::kAny) {
          rest = patch;
          row = TakeDigit(p.patch_rows, rest) * P::kRows;
          col = TakeDigit(p.patch_cols, rest) * P::kCols;
          class_w = TakeDigit(p.classes_w, rest);
          class_h = rest;
        }
        const ClassTaps& taps_h = p.h.taps[class_h];
        const ClassTaps& taps_w = p.w.taps[class_w];
        const char* at = origin +
                         (taps_h.input + row * p.h.in_step) * p.in.row_bytes +
                         (taps_w.input + col * p.w.in_step) * kPixel;
        float2 sums[P::kRows][P::kCols] = {};
        if constexpr (P::kAny) {
          TapRange rows = {0, taps_h.count}, cols = {0, taps_w.count};
          if (clipped) {
            const int y = (place.row + row) * p.h.in_step + p.h.origin;
            const int x = (place.col + col) * p.w.in_step + p.w.origin;
            const int first = x + taps_w.input;
            const int last = first + (P::kCols - 1) * p.w.in_step;
            rows = MeetingTaps(p.h, taps_h.count, y + taps_h.input,
                               y + taps_h.input);
            cols = MeetingTaps(p.w, taps_w.count, first, last);
          }
          const float2* of_class =
              weights + lane +
              (taps_h.first * p.w.filter_size + taps_w.first) * kLanes;
          if (p.sliding) {
            SumSliding<T, kLanes>(at, p, of_class, rows, cols, sums);
          } else {
            SumAny<T, kLanes>(at, p, of_class, rows, cols, sums);
          }
        } else {
          SumPatch<P, T, kTaps, kStep>(at, p.in.row_bytes, first_weight, kept,
                                       row_taps, col_taps, sums);
        }
        const int h = (place.row + row) * p.h.classes + class_h;
        const int w = (place.col + col) * p.w.classes + class_w;
        T* to = result + (h * p.w.out_size + w) * p.channels;
        const int pixel_stride = p.w.classes * p.channels;
        const int last_w = left > 0 ? p.w.out_size : 0;
        if (!P::kAny && h + P::kRows <= p.h.out_size &&
            w + P::kCols <= last_w) {
#pragma unroll
          for (int i = 0; i < P::kRows; ++i) {
#pragma unroll
            for (int j = 0; j < P::kCols; ++j) {
              StorePair<kAligned>(to + j * p.channels, sums[i][j], left);
            }
            to += p.w.out_size * p.channels;
          }
          break;
        }
#pragma unroll
        for (int i = 0; i < P::kRows; ++i) {
          if (h + i * p.h.classes >= p.h.out_size) break;
#pragma unroll
          for (int j = 0; j < P::kCols; ++j) {
            if (w + j * p.w.classes < last_w) {
              StorePair<kAligned>(to + j * pixel_stride, sums[i][j], left);
            }
          }
          to += p.h.classes * p.w.out_size * p.channels;
        }
        if constexpr (!P::kAny) break;
      }
    }
    stage = stage == kStages - 1 ? 0 : stage + 1;
  }
}

}  // namespace jax_convbatch::direct
