// SPDX-License-Identifier: Apache-2.0
// Large depthwise filters on the tensor cores, as TF32, which holds every bf16
// and f16.
//
// A run is eight neighbouring outputs of a channel. What one row of the filter
// adds to it is the product of the inputs that the run reads, 8 kSteps of them,
// with a Toeplitz matrix: element (k, n) is tap k - n. Sixteen runs below each
// other are a product of 16x8 by 8x8 for each eight of inputs, and the runs
// beside them take the same inputs with another of the matrix's blocks. So a
// warp has a channel: for each row of the filter it loads the matrix from a row
// of taps between zeros, then each eight of inputs once.
//
// wgrad is the same sum: dy is the filter, dw the output, and a block adds up
// what all its samples give.
//
// The matrix's zeros meet inputs beside those that count, so a sum that is NaN
// is formed again without them.
#pragma once

#include "cuda/common/floats.h"
#include "cuda/sm80/direct/mma.cuh"
#include "cuda/sm90/arch/mma_tf32.cuh"
#include "cuda/sm90/arch/round_tf32.cuh"
#include "cuda/sm90/kernels/depthwise/depthwise_toeplitz_problem.h"
#include "cuda/sm90/kernels/depthwise/depthwise_toeplitz_tiling.h"

namespace jax_convbatch::direct {

template <typename T>
__device__ __forceinline__ float AsTf32(T value) {
  const float wide = Convert<float>(value);
  return sizeof(T) == 4 ? hopper::RoundTf32(wide) : wide;
}

// Four channels of a pixel, zeros where it is null.
template <typename T>
__device__ __forceinline__ void LoadQuad(const T* pixel, float (&to)[4]) {
  Vector<T, 4> quad{};
  if (pixel != nullptr) quad = *reinterpret_cast<const Vector<T, 4>*>(pixel);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    to[i] = AsTf32(quad.values[i]);
  }
}

// Rows of pixels into planes of single channels: pixel(row, column) is where
// one lies, null where there are zeros.
template <typename T, int kColumns, int kPitch, typename Pixel>
__device__ __forceinline__ void LoadPlanes(float* planes, int plane, int rows,
                                           Pixel&& pixel) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* to = planes + lane % 2 * 4 * plane + lane / 2;
  for (int row = warp; row < rows; row += blockDim.x / 32) {
#pragma unroll
    for (int first = 0; first < kColumns; first += 16) {
      const int column = first + lane / 2;
      if (kColumns % 16 != 0 && column >= kColumns) break;
      float quad[4];
      LoadQuad(pixel(row, column), quad);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        to[i * plane + row * kPitch + first] = quad[i];
      }
    }
  }
}

// A sum, of one channel, with rows [h, h_end) and columns [w, w_end) of the
// filter of a sample, as it is defined.
template <typename T>
__device__ __forceinline__ float AddDirectly(const ToeplitzProblem& p,
                                             float sum, const T* in,
                                             const T* filter, int y, int x,
                                             int h, int h_end, int w,
                                             int w_end) {
  for (int i = h; i < h_end; ++i) {
    for (int j = w; j < w_end; ++j) {
      const int from_h = y + i - p.pad_h, from_w = x + j - p.pad_w;
      const bool there =
          from_h >= 0 && from_h < p.in_h && from_w >= 0 && from_w < p.in_w;
      const int r = p.flipped ? p.filter_h - 1 - i : i;
      const int s = p.flipped ? p.filter_w - 1 - j : j;
      const float value =
          there ? AsTf32(in[(int64_t{from_h} * p.in_w + from_w) * p.channels])
                : 0.0f;
      const float tap =
          AsTf32(filter[(int64_t{r} * p.filter_w + s) * p.channels]);
      sum = fmaf(value, tap, sum);
    }
  }
  return sum;
}

template <typename T, typename Tiling, bool kWgrad>
struct ToeplitzBlock {
  const ToeplitzProblem& p;
  float *inputs, *filters;
  int input_plane, filter_plane;
  int channel;  // the first of this thread's four, of what it loads and stores
  bool has_channels;

  __device__ ToeplitzBlock(const ToeplitzProblem& p, float* shared, int tile)
      : p(p), inputs(shared), filter_plane(Tiling::FilterPlane(p.part_h)) {
    const int plane = Tiling::InputPlane(p.part_h);
    input_plane = plane > Tiling::kOutputPlane ? plane : Tiling::kOutputPlane;
    filters = inputs + Tiling::kChannels * input_plane;
    channel = tile * Tiling::kChannels + threadIdx.x % 2 * 4;
    has_channels = channel < p.channels;
  }

  // The filter, or the part of a sample's dy that begins at (h, w).
  __device__ void LoadFilter(int sample, int h, int w) const {
    const T* const of = static_cast<const T*>(p.filter) +
                        int64_t{sample} * p.filter_h * p.filter_w * p.channels +
                        channel;
    LoadPlanes<T, Tiling::kTaps, Tiling::kTaps>(
        filters, filter_plane, p.part_h, [&](int row, int column) -> const T* {
          int r = h + row, s = w + column - 8;
          bool there = column >= 8 && column - 8 < p.part_w;
          if constexpr (Tiling::kSequence) {
            s = row * 32 + column - 8;
            r = 0;
            there = column >= 8 && column < 40;
          }
          if (!there || !has_channels || r >= p.filter_h || s >= p.filter_w) {
            return nullptr;
          }
          if (p.flipped) {
            r = p.filter_h - 1 - r;
            s = p.filter_w - 1 - s;
          }
          return of + (int64_t{r} * p.filter_w + s) * p.channels;
        });
  }

  // The inputs of a sample from (h, w) on.
  __device__ void LoadInputs(int sample, int h, int w) const {
    const T* const of = static_cast<const T*>(p.in) +
                        int64_t{sample} * p.in_h * p.in_w * p.channels +
                        channel;
    LoadPlanes<T, Tiling::kInputColumns, Tiling::kPitch>(
        inputs, input_plane, Tiling::InputRows(p.part_h),
        [&](int row, int column) -> const T* {
          int y = h + row, x = w + column;
          if constexpr (Tiling::kSequence) {
            y = 0;
            x = w + row * 32 + column;
          }
          if (!has_channels || y < 0 || y >= p.in_h || x < 0 || x >= p.in_w) {
            return nullptr;
          }
          return of + (int64_t{y} * p.in_w + x) * p.channels;
        });
  }

  __device__ void Multiply(
      float (&sums)[Tiling::kRowBlocks][Tiling::kRuns][4]) const {
    constexpr int kSteps = Tiling::kSteps, kRuns = Tiling::kRuns;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float* taps = filters + warp * filter_plane + 8 + lane % 4 - lane / 4;
    uint32_t row = SharedAddress(inputs + warp * input_plane +
                                 lane % 16 * Tiling::kPitch + lane / 16 * 4);
    for (int i = 0; i < p.part_h; ++i) {
      float matrix[kSteps][2];
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        matrix[k][0] = taps[8 * k];
        matrix[k][1] = taps[8 * k + 4];
      }
#pragma unroll
      for (int eight = 0; eight < kRuns + kSteps - 1; ++eight) {
        const int at = 8 * eight + (Tiling::kSequence ? eight / 4 * 4 : 0);
#pragma unroll
        for (int block = 0; block < Tiling::kRowBlocks; ++block) {
          uint32_t a[4];
          LoadMatrices(a, row + 4 * (16 * block * Tiling::kPitch + at));
#pragma unroll
          for (int run = 0; run < kRuns; ++run) {
            const int k = eight - run;
            if (k < 0 || k >= kSteps) continue;
            hopper::MultiplyTf32(sums[block][run], __uint_as_float(a[0]),
                                 __uint_as_float(a[1]), __uint_as_float(a[2]),
                                 __uint_as_float(a[3]), matrix[k][0],
                                 matrix[k][1]);
          }
        }
      }
      taps += Tiling::kTaps;
      row += 4 * Tiling::kPitch;
    }
  }

  // From registers to planes, by all warps between barriers.
  __device__ void Collect(
      const float (&sums)[Tiling::kRowBlocks][Tiling::kRuns][4]) const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float* const to = inputs + warp * Tiling::kOutputPlane + lane % 4 * 2 +
                      lane / 4 * Tiling::kOutputPitch;
#pragma unroll
    for (int block = 0; block < Tiling::kRowBlocks; ++block) {
#pragma unroll
      for (int run = 0; run < Tiling::kRuns; ++run) {
        float* const at = to + 16 * block * Tiling::kOutputPitch + 8 * run;
        const float (&sum)[4] = sums[block][run];
        *reinterpret_cast<float2*>(at) = make_float2(sum[0], sum[1]);
        *reinterpret_cast<float2*>(at + 8 * Tiling::kOutputPitch) =
            make_float2(sum[2], sum[3]);
      }
    }
  }

  // Output (y, x) of the thread's i-th channel: a sample's, or in wgrad what
  // the worker's items add to it.
  __device__ float Again(int first, int i, int y, int x) const {
    const int across = p.across, each = p.down * across;
    const int64_t pixels = int64_t{p.in_h} * p.in_w * p.channels;
    const int64_t taps = int64_t{p.filter_h} * p.filter_w * p.channels;
    const T* const in = static_cast<const T*>(p.in) + channel + i;
    const T* const filter = static_cast<const T*>(p.filter) + channel + i;
    if constexpr (!kWgrad) {
      return AddDirectly(p, 0.0f, in + first / each * pixels, filter, y, x, 0,
                         p.filter_h, 0, p.filter_w);
    }
    float sum = 0.0f;
    for (int item = first; item < p.items; item += p.workers) {
      const int sample = item / each, rest = item - sample * each;
      const int h = rest / across * p.part_h, w = rest % across * p.part_w;
      sum = AddDirectly(p, sum, in + sample * pixels, filter + sample * taps, y,
                        x, h, min(h + p.part_h, p.filter_h), w,
                        min(w + p.part_w, p.filter_w));
    }
    return sum;
  }

  // Where an output of the tile that begins at (h, w) lies.
  __device__ void Place(int row, int column, int h, int w, int* y,
                        int* x) const {
    *y = Tiling::kSequence ? 0 : h + row;
    *x = w + column + (Tiling::kSequence ? row * 32 : 0);
  }

  // The tile, of an array with all channels; `item`: the first that has added
  // to it.
  template <typename To>
  __device__ void Store(To* out, int item, int h, int w) const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float* const from =
        inputs + lane % 2 * 4 * Tiling::kOutputPlane + lane / 2;
    bool has_nan = false;
    for (int row = warp; row < Tiling::kRows; row += Tiling::kThreads / 32) {
#pragma unroll
      for (int first = 0; first < Tiling::kColumns; first += 16) {
        int y, x;
        Place(row, first + lane / 2, h, w, &y, &x);
        if (!has_channels || y >= p.out_h || x >= p.out_w) continue;
        Vector<To, 4> quad;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float sum = from[i * Tiling::kOutputPlane +
                                 row * Tiling::kOutputPitch + first];
          has_nan |= isnan(sum);
          quad.values[i] = Convert<To>(sum);
        }
        To* const to = out + (int64_t{y} * p.out_w + x) * p.channels + channel;
        *reinterpret_cast<Vector<To, 4>*>(to) = quad;
      }
    }
    if (has_nan) Mend(out, item, h, w);
  }

  // Forms this thread's sums that are NaN again.
  template <typename To>
  __device__ void Mend(To* out, int item, int h, int w) const {
    constexpr int kFew = Tiling::kColumns / 16 * 4;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll 1
    for (int at = 0; at < Tiling::kRows / 8 * kFew; ++at) {
      const int row = at / kFew * 8 + warp, i = at % 4;
      const int column = at % kFew / 4 * 16 + lane / 2;
      int y, x;
      Place(row, column, h, w, &y, &x);
      if (y >= p.out_h || x >= p.out_w) continue;
      const float sum = inputs[(lane % 2 * 4 + i) * Tiling::kOutputPlane +
                               row * Tiling::kOutputPitch + column];
      if (!isnan(sum)) continue;
      out[(int64_t{y} * p.out_w + x) * p.channels + channel + i] =
          Convert<To>(Again(item, i, y, x));
    }
  }
};

template <typename T, typename Tiling, bool kWgrad>
__global__ void __launch_bounds__(Tiling::kThreads, 2)
    DepthwiseToeplitzKernel(const __grid_constant__ ToeplitzProblem p) {
  extern __shared__ __align__(16) float shared[];
  const int tile = blockIdx.x % p.channel_tiles;
  const int worker = blockIdx.x / p.channel_tiles;
  const ToeplitzBlock<T, Tiling, kWgrad> block(p, shared, tile);
  float sums[Tiling::kRowBlocks][Tiling::kRuns][4] = {};
  if (!kWgrad) block.LoadFilter(0, 0, 0);
  constexpr int kStep =
      Tiling::kSequence ? Tiling::kRows * 32 : Tiling::kColumns;
  for (int item = worker; item < p.items; item += p.workers) {
    const int sample = item / (p.down * p.across);
    const int rest = item - sample * p.down * p.across;
    const int down = rest / p.across, across = rest - down * p.across;
    const int h = down * (kWgrad ? p.part_h : Tiling::kRows);
    const int w = across * (kWgrad ? p.part_w : kStep);
    __syncthreads();  // all have read what lay there
    if (kWgrad) block.LoadFilter(sample, h, w);
    block.LoadInputs(sample, h - p.pad_h, w - p.pad_w);
    __syncthreads();
    block.Multiply(sums);
    if constexpr (!kWgrad) {
      __syncthreads();
      block.Collect(sums);
      __syncthreads();
      T* const out = static_cast<T*>(p.out);
      block.Store(out + int64_t{sample} * p.out_h * p.out_w * p.channels, item,
                  h, w);
#pragma unroll
      for (int i = 0; i < Tiling::kRowBlocks; ++i) {
#pragma unroll
        for (int j = 0; j < Tiling::kRuns; ++j) {
#pragma unroll
          for (int k = 0; k < 4; ++k) sums[i][j][k] = 0.0f;
        }
      }
    }
  }
  if constexpr (kWgrad) {
    __syncthreads();
    block.Collect(sums);
    __syncthreads();
    float* const out = static_cast<float*>(p.out);
    block.Store(out + int64_t{worker} * p.out_h * p.out_w * p.channels, worker,
                0, 0);
  }
}

}  // namespace jax_convbatch::direct
