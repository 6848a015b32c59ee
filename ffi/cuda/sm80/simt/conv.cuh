// SPDX-License-Identifier: Apache-2.0
// fprop and dgrad of f32 on the ordinary cores.
#pragma once

#include "cuda/sm80/simt/tile.cuh"

namespace jax_convbatch::simt {

// Where a step of the reduction is.
struct StepWalk {
  int r, s, block;

  __device__ StepWalk(const ConvProblem& p, const Subproblem& sub, int step) {
    block = step % p.depth_blocks;
    const int tap = step / p.depth_blocks;
    s = tap % max(sub.taps_w.count, 1);
    r = tap / max(sub.taps_w.count, 1);
  }
  // Whether the next step is another tap's.
  __device__ __forceinline__ bool Next(const ConvProblem& p,
                                       const Subproblem& sub) {
    if (++block < p.depth_blocks) return false;
    block = 0;
    if (++s == sub.taps_w.count) s = 0, ++r;
    return true;
  }
};

// A thread's share of copying a tile's pixels, transposed: one channel of
// eight, of every kAtOnce-th pixel.
template <typename T>
class PixelCopies {
 public:
  static constexpr int kAtOnce = T::kThreads / 8, kEach = T::kM / kAtOnce;

  __device__ __forceinline__ PixelCopies(const ConvProblem& p,
                                         const Subproblem& sub, int first)
      : p_(p), sub_(sub) {
    const int channel = threadIdx.x % 8;
    const int first_image = first / sub.cols / sub.rows;
    from_ =
        p.in + int64_t{first_image} * p.height * p.width * p.channels + channel;
    to_ = channel * T::kPitchA + threadIdx.x / 8;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int pixel = first + threadIdx.x / 8 + i * kAtOnce;
      const int line = pixel / sub.cols, n = line / sub.rows;
      h_[i] = sub.in_h + (line - n * sub.rows) * sub.in_step_h;
      w_[i] = sub.in_w + (pixel - line * sub.cols) * sub.in_step_w;
      at_[i] = (((n - first_image) * p.height + h_[i]) * p.width + w_[i]) *
               p.channels;
      if (pixel >= sub.pixels) h_[i] = kNowhere;
    }
  }

  __device__ __forceinline__ void SetTap(const StepWalk& step) {
    const int h = step.r * sub_.taps_h.offset_step;
    const int w = step.s * sub_.taps_w.offset_step;
    tap_ = from_ + (int64_t{h} * p_.width + w) * p_.channels;
    inside_ = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const bool inside = static_cast<unsigned>(h_[i] + h) < p_.height &&
                          static_cast<unsigned>(w_[i] + w) < p_.width;
      inside_ |= static_cast<unsigned>(inside) << i;
    }
  }

  __device__ __forceinline__ void Start(float* stage, int block) const {
    const uint32_t to = SharedAddress(stage + to_);
    const float* from = Opaque(tap_ + block * kDepth);
    const int left = p_.channels - block * kDepth - threadIdx.x % 8;
    const unsigned inside[2] = {Opaque(left > 0 ? inside_ : 0),
                                Opaque(left > 8 ? inside_ : 0)};
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const float* const pixel = from + at_[i];
#pragma unroll
      for (int k = 0; k < kDepth; k += 8) {
        Copy4(to + (k * T::kPitchA + i * kAtOnce) * 4, pixel + k,
              inside[k / 8] & 1u << i);
      }
    }
  }

 private:
  static constexpr int kNowhere = -(1 << 30);

  const ConvProblem& p_;
  const Subproblem& sub_;
  const float *from_, *tap_;
  int to_;
  int h_[kEach], w_[kEach], at_[kEach];
  unsigned inside_;
};

// Of copying a tile's weights: fprop's as they lie, dgrad's transposed.
template <typename T, bool kDgrad>
class WeightCopies {
 public:
  __device__ __forceinline__ WeightCopies(const ConvProblem& p,
                                          const Subproblem& sub, int first)
      : p_(p), sub_(sub) {
    const int n = first + (kDgrad ? threadIdx.x / 8 : threadIdx.x % kQuads * 4);
    const int k = kDgrad ? threadIdx.x % 8 : threadIdx.x / kQuads;
    left_n_ = p.out_channels - n;
    to_ = kDepth * T::kPitchA + k * T::kPitchB + n - first;
    from_ = p.w + (kDgrad ? int64_t{n} * p.channels + k
                          : int64_t{k} * p.out_channels + n);
  }

  __device__ __forceinline__ void SetTap(const StepWalk& step) {
    const int r = sub_.taps_h.tap + step.r * sub_.taps_h.tap_step;
    const int s = sub_.taps_w.tap + step.s * sub_.taps_w.tap_step;
    tap_ = from_ +
           int64_t{r * p_.filter_width + s} * p_.channels * p_.out_channels;
  }

  __device__ __forceinline__ void Start(float* stage, int block) const {
    const uint32_t to = SharedAddress(stage + to_);
    const int first = block * kDepth;
    if constexpr (kDgrad) {
      const int left = p_.channels - first - threadIdx.x % 8;
      const float* const row = Opaque(tap_ + first);
#pragma unroll
      for (int i = 0; i < T::kN / kAtOnce; ++i) {
        const float* from = row + i * kAtOnce * p_.channels;
        const bool there = left_n_ > i * kAtOnce;
#pragma unroll
        for (int k = 0; k < kDepth; k += 8) {
          Copy4(to + (k * T::kPitchB + i * kAtOnce) * 4, from + k,
                there && left > k);
        }
      }
    } else {
      const int left = p_.channels - first - threadIdx.x / kQuads;
      const float* from = Opaque(tap_ + int64_t{first} * p_.out_channels);
#pragma unroll
      for (int k = 0; k < kDepth; k += kRowsAtOnce) {
        Copy16(to + k * T::kPitchB * 4, from + k * p_.out_channels,
               left_n_ > 0 && left > k);
      }
    }
  }

 private:
  static constexpr int kAtOnce = T::kThreads / 8;
  static constexpr int kQuads = T::kN / 4, kRowsAtOnce = T::kThreads / kQuads;

  const ConvProblem& p_;
  const Subproblem& sub_;
  const float *from_, *tap_;
  int to_, left_n_;
};

// Adds a tile's sums to what is there, or writes them.
template <typename T>
__device__ __forceinline__ void StoreConv(const ConvProblem& p,
                                          const Subproblem& sub, float* out,
                                          int first_pixel, int first_channel,
                                          bool adds, const Sums<T>& sums) {
#pragma unroll
  for (int i = 0; i < T::kRows; ++i) {
    const int pixel = first_pixel + T::Row(i);
    const int line = pixel / sub.cols, n = line / sub.rows;
    const int h = sub.out_h + (line - n * sub.rows) * sub.out_step_h;
    const int w = sub.out_w + (pixel - line * sub.cols) * sub.out_step_w;
    float* const row =
        out +
        ((int64_t{n} * p.out_height + h) * p.out_width + w) * p.out_channels;
#pragma unroll
    for (int j = 0; j < T::kCols; j += 4) {
      const int channel = first_channel + T::Col(j);
      if (pixel >= sub.pixels || channel >= p.out_channels) continue;
      float4* const at = reinterpret_cast<float4*>(row + channel);
      const float* const v = sums.at[i] + j;
      float4 sum = make_float4(v[0], v[1], v[2], v[3]);
      if (adds) {
        const float4 old = *at;
        sum = make_float4(old.x + sum.x, old.y + sum.y, old.z + sum.z,
                          old.w + sum.w);
      }
      *at = sum;
    }
  }
}

template <typename T, bool kDgrad>
__global__ void __launch_bounds__(T::kThreads, T::kBlocksPerSm)
    ConvKernel(const __grid_constant__ ConvProblem p) {
  extern __shared__ float4 shared[];
  float* const ring = reinterpret_cast<float*>(shared);
  const int k_slice = blockIdx.x / p.tiles;
  const int tile = blockIdx.x - k_slice * p.tiles;
  const int m_tile = tile / p.n_tiles;
  int number = 0;
  while (number + 1 < p.subs && p.sub[number + 1].first_tile <= m_tile) {
    ++number;
  }
  const Subproblem& sub = p.sub[number];
  const int first_pixel = (m_tile - sub.first_tile) * T::kM;
  const int first_channel = (tile - m_tile * p.n_tiles) * T::kN;
  auto k_slice_begin = [&](int i) { return sub.steps * i / p.k_slices; };
  const int begin = p.split ? k_slice_begin(k_slice) : 0;
  const int end = p.split ? k_slice_begin(k_slice + 1) : sub.steps;
  float* const out = p.out + (p.split ? k_slice * p.k_slice_size : 0);

  Sums<T> sums;
  sums.Clear();
  StepWalk step(p, sub, begin);
  PixelCopies<T> pixels(p, sub, first_pixel);
  WeightCopies<T, kDgrad> weights(p, sub, first_channel);
  bool new_tap = true, adds = false;
  int now = 0, k_slice_end = p.split ? end : k_slice_begin(1);
  RunStages<T>(
      ring, end - begin, sums,
      [&](float* stage) {
        if (new_tap) {
          pixels.SetTap(step);
          weights.SetTap(step);
        }
        pixels.Start(stage, step.block);
        weights.Start(stage, step.block);
        new_tap = step.Next(p, sub);
      },
      [&](int i) {
        if (begin + i + 1 != k_slice_end || k_slice_end == end) return;
        StoreConv<T>(p, sub, out, first_pixel, first_channel, adds, sums);
        sums.Clear();
        adds = true;
        k_slice_end = k_slice_begin(++now + 1);
      });
  StoreConv<T>(p, sub, out, first_pixel, first_channel, adds, sums);
}

}  // namespace jax_convbatch::simt
