// SPDX-License-Identifier: Apache-2.0
// A thread of fprop or dgrad has eight outputs of four channels, so that four
// loads of the filter and eight of the image serve 128 products. Neighbouring
// threads have neighbouring channels; what they share comes from the L1.
#pragma once

#include <cstdint>

#include "cuda/common/fast_divmod.h"
#include "cuda/sm80/direct/quads.h"
#include "cuda/sm80/direct/walk.h"

namespace jax_convbatch::direct {

// fprop and dgrad: result from source.
struct QuadProblem {
  const float *source, *filter;
  float* result;
  AxisWalk h, w;
  uint32_t items;
  FastDivmod<uint32_t> quads, strips, rows, classes_h, classes_w, group;
  // Channels of the source and the result, of all groups and of one; the
  // filter's rows are `filter_channels` long.
  int in_channels, out_channels, in_group, out_group, filter_channels;
};

// wgrad: each worker's sums over its rows, [worker][tap][C / groups][K].
struct QuadWgradProblem {
  const float *x, *dy;
  float* partials;
  AxisWalk h, w;
  int channels_x, channels_y, in_group, out_group;
  int rows, rows_each, pairs;
  FastDivmod<uint32_t> pair_tiles, chunks, filter_rows, quads_y, out_rows;
  FastDivmod<uint32_t> group;
};

__device__ inline float4 QuadAt(const float* a, int64_t at, bool inside) {
  return inside ? __ldg(reinterpret_cast<const float4*>(a + at))
                : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

// sum += a b, a scalar by four.
__device__ inline void Add(float a, const float4& b, float4& sum) {
  sum.x = fmaf(a, b.x, sum.x);
  sum.y = fmaf(a, b.y, sum.y);
  sum.z = fmaf(a, b.z, sum.z);
  sum.w = fmaf(a, b.w, sum.w);
}

__device__ inline float Dot(const float4& a, const float4& b, float sum) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

template <bool kDgrad>
__global__ void __launch_bounds__(kQuadThreads, 2)
    QuadKernel(const __grid_constant__ QuadProblem p) {
  uint32_t rest = blockIdx.x * kQuadThreads + threadIdx.x;
  if (rest >= p.items) return;
  const int out = 4 * TakeDigit(p.quads, rest);
  uint32_t strip = TakeDigit(p.strips, rest);
  const int row = TakeDigit(p.rows, rest);
  const int64_t sample = rest;
  const int class_w = TakeDigit(p.classes_w, strip);
  const int first = strip * kQuadPixels;
  uint32_t row_of_class = row;
  const int class_h = TakeDigit(p.classes_h, row_of_class);
  const int group = p.group.Divide(out), in = group * p.in_group;
  const ClassTaps taps_h = p.h.taps[class_h], taps_w = p.w.taps[class_w];
  const float* source = p.source + sample * p.h.in_size * p.w.in_size *
                                       static_cast<int64_t>(p.in_channels);

  float4 sums[kQuadPixels];
#pragma unroll
  for (int i = 0; i < kQuadPixels; ++i) sums[i] = make_float4(0, 0, 0, 0);
  for (int i = 0; i < taps_h.count; ++i) {
    const int y = p.h.origin + taps_h.input +
                  static_cast<int>(row_of_class) * p.h.in_step +
                  i * p.h.offset_step;
    const bool in_rows = y >= 0 && y < p.h.in_size;
    for (int j = 0; j < taps_w.count; ++j) {
      const int x =
          p.w.origin + taps_w.input + first * p.w.in_step + j * p.w.offset_step;
      const int64_t tap = (taps_h.first + i * p.h.tap_step) * p.w.filter_size +
                          taps_w.first + j * p.w.tap_step;
      const float* filter =
          p.filter + (kDgrad ? (tap * p.out_group + out - group * p.out_group) *
                                       p.filter_channels +
                                   in
                             : tap * p.in_group * p.filter_channels + out);
      const float* pixel =
          source + (static_cast<int64_t>(y) * p.w.in_size + x) * p.in_channels +
          in;
      for (int c = 0; c < p.in_group; c += 4) {
        float4 w[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          w[e] = QuadAt(
              filter,
              kDgrad ? e * p.filter_channels + c : (c + e) * p.filter_channels,
              true);
        }
#pragma unroll
        for (int o = 0; o < kQuadPixels; ++o) {
          const int at = x + o * p.w.in_step;
          const float4 v = QuadAt(pixel, o * p.w.in_step * p.in_channels + c,
                                  in_rows && at >= 0 && at < p.w.in_size);
          if (kDgrad) {
            sums[o].x = Dot(v, w[0], sums[o].x);
            sums[o].y = Dot(v, w[1], sums[o].y);
            sums[o].z = Dot(v, w[2], sums[o].z);
            sums[o].w = Dot(v, w[3], sums[o].w);
          } else {
            Add(v.x, w[0], sums[o]);
            Add(v.y, w[1], sums[o]);
            Add(v.z, w[2], sums[o]);
            Add(v.w, w[3], sums[o]);
          }
        }
      }
    }
  }
  float* result = p.result +
                  (sample * p.h.out_size + row) * p.w.out_size *
                      static_cast<int64_t>(p.out_channels) +
                  out;
#pragma unroll
  for (int o = 0; o < kQuadPixels; ++o) {
    const int at = (first + o) * p.w.classes + class_w;
    if (at < p.w.out_size) {
      *reinterpret_cast<float4*>(result + at * p.out_channels) = sums[o];
    }
  }
}

// A thread sums kQuadTaps taps of a filter row for four channels of x by four
// of dy; teams go through the worker's rows of outputs in turns, and their sums
// are added in order.
__global__ void __launch_bounds__(kQuadThreads, 2)
    QuadWgradKernel(const __grid_constant__ QuadWgradProblem p) {
  constexpr int kLanes = kQuadThreads / kQuadTeams;
  constexpr int kSums = kQuadTaps * 16;
  __shared__ float shared[kQuadTeams][kSums][kLanes];
  const int lane = threadIdx.x % kLanes, team = threadIdx.x / kLanes;
  uint32_t rest = blockIdx.x;
  uint32_t pair = TakeDigit(p.pair_tiles, rest) * kLanes + lane;
  const int chunk = TakeDigit(p.chunks, rest);
  const int r = TakeDigit(p.filter_rows, rest);
  const int worker = rest;
  const bool idle = pair >= p.pairs;
  const int k = 4 * TakeDigit(p.quads_y, pair), c = 4 * pair;
  const int from = p.group.Divide(k) * p.in_group + c;

  float4 sums[kQuadTaps][4];
#pragma unroll
  for (int s = 0; s < kQuadTaps; ++s) {
#pragma unroll
    for (int a = 0; a < 4; ++a) sums[s][a] = make_float4(0, 0, 0, 0);
  }
  const int begin = worker * p.rows_each;
  const int end = idle ? begin : min(begin + p.rows_each, p.rows);
  for (int at = begin + team; at < end; at += kQuadTeams) {
    uint32_t sample = at;
    const int row = TakeDigit(p.out_rows, sample);
    const int y = p.h.origin + p.h.taps[0].input + row * p.h.in_step +
                  r * p.h.offset_step;
    const bool in_rows = y >= 0 && y < p.h.in_size;
    const int first =
        p.w.origin + p.w.taps[0].input + chunk * kQuadTaps * p.w.offset_step;
    const float* dy =
        p.dy + static_cast<int64_t>(at) * p.w.out_size * p.channels_y + k;
    const float* image =
        p.x +
        ((static_cast<int64_t>(sample) * p.h.in_size + y) * p.w.in_size +
         first) *
            p.channels_x +
        from;
#pragma unroll 2
    for (int q = 0; q < p.w.out_size; ++q) {
      const float4 d = QuadAt(dy, q * p.channels_y, true);
#pragma unroll
      for (int s = 0; s < kQuadTaps; ++s) {
        const int offset = q * p.w.in_step + s * p.w.offset_step;
        const int x = first + offset;
        const float4 v = QuadAt(image, offset * p.channels_x,
                                in_rows && x >= 0 && x < p.w.in_size);
        Add(v.x, d, sums[s][0]);
        Add(v.y, d, sums[s][1]);
        Add(v.z, d, sums[s][2]);
        Add(v.w, d, sums[s][3]);
      }
    }
  }
#pragma unroll
  for (int s = 0; s < kQuadTaps; ++s) {
#pragma unroll
    for (int a = 0; a < 4; ++a) {
      float (*mine)[kLanes] = &shared[team][(s * 4 + a) * 4];
      mine[0][lane] = sums[s][a].x;
      mine[1][lane] = sums[s][a].y;
      mine[2][lane] = sums[s][a].z;
      mine[3][lane] = sums[s][a].w;
    }
  }
  __syncthreads();
  if (idle) return;
  // Each team adds up a share of the sums, for the channels of its lane.
  float* partial = p.partials + static_cast<int64_t>(worker) * p.h.filter_size *
                                    p.w.filter_size * p.in_group * p.channels_y;
  for (int i = team; i < kSums; i += kQuadTeams) {
    const int s = chunk * kQuadTaps + i / 16;
    if (s >= p.w.filter_size) break;
    float sum = shared[0][i][lane];
    for (int t = 1; t < kQuadTeams; ++t) sum += shared[t][i][lane];
    const int64_t tap = r * p.w.filter_size + s;
    partial[(tap * p.in_group + c + i / 4 % 4) * p.channels_y + k + i % 4] =
        sum;
  }
}

}  // namespace jax_convbatch::direct
