// SPDX-License-Identifier: Apache-2.0
// fprop and dgrad of f32 by six products of bf16 (bf16x6_terms.cuh): pixels are
// the left operand, which is cut into terms on its way to registers; the
// filter's terms come from the workspace.
#pragma once

#include "cuda/common/dependent_launch.cuh"
#include "cuda/sm90/kernels/bf16x6/bf16x6_problem.h"
#include "cuda/sm90/kernels/bf16x6/bf16x6_terms.cuh"
#include "cuda/sm90/kernels/conv/conv_config.cuh"

namespace jax_convbatch::hopper {

// Tiles of kM pixels by kN channels, of which each warpgroup has half the
// pixels.
template <int kM_, int kN_, int kStages_>
struct Bf16x6Config {
  static constexpr int kM = kM_, kN = kN_, kStages = kStages_;
  static constexpr int kGroupM = kM / kConsumers, kBlocks = kGroupM / 64;
  static constexpr int kInputBytes = kM * 128;
  static constexpr int kWidth = kOneGroup;
  static constexpr Sum kSum = Sum::kKSlices;
  static constexpr int kWeightBytes = 3 * kN / 64 * kBf16x6BoxBytes;
  static constexpr int kStageBytes = kInputBytes + kWeightBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes + 1024;
};

// A tile, and the K slices of its sums that a block forms: [first, last).
struct Bf16x6Work {
  ConvTile tile;
  int first_k_slice, last_k_slice;
};

template <typename Config, int kSubs>
__device__ __forceinline__ Bf16x6Work
Bf16x6WorkAt(const Bf16x6Problem<kSubs>& p, int unit) {
  const int k_slice = p.split ? unit / p.tiles : 0;
  return {TileAt<Config>(p, unit - k_slice * p.tiles), k_slice,
          p.split ? k_slice + 1 : p.k_slices};
}

template <int kSubs>
__device__ __forceinline__ int Bf16x6Units(const Bf16x6Problem<kSubs>& p) {
  return p.split ? p.tiles * p.k_slices : p.tiles;
}

template <typename Config, bool kInput, int kSubs>
__device__ __forceinline__ void IssueBf16x6Copies(
    const Bf16x6Problem<kSubs>& p, uint32_t ring,
    RingBarriers<Config::kStages>& barriers) {
  RingPosition<Config::kStages> at;
  const int units = Bf16x6Units(p);
  if (!kInput) WaitForPrimary();  // the filter's terms
  for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
    const Bf16x6Work work = Bf16x6WorkAt<Config>(p, unit);
    const ConvTile& tile = work.tile;
    const ConvSubproblem& sub = *tile.sub;
    const int row = tile.pixel / sub.cols;
    const int image = row / sub.rows;
    const int w =
        sub.input_w + (tile.pixel - row * sub.cols) * sub.input_step_w;
    const int h = sub.input_h + (row - image * sub.rows) * sub.input_step_h;
    const int begin =
        KSliceBegin(tile.iterations, work.first_k_slice, p.k_slices);
    const int end = KSliceBegin(tile.iterations, work.last_k_slice, p.k_slices);
    const int tap = begin / p.channel_blocks;
    int block = begin - tap * p.channel_blocks;
    int r = sub.taps_w.count > 0 ? tap / sub.taps_w.count : 0;
    int s = tap - r * sub.taps_w.count;
    for (int i = begin; i < end; ++i) {
      const uint32_t full = SharedAddress(&barriers.full[at.stage]);
      const uint32_t input = ring + at.stage * Config::kStageBytes;
      BarrierWait(SharedAddress(&barriers.empty[at.stage]), at.round ^ 1);
      if constexpr (kInput) {
        BarrierArriveExpect(full, Config::kInputBytes);
        LoadIm2col(input, sub.input, full, block * kBf16x6Depth, w, h, image,
                   s * sub.taps_w.offset_step, r * sub.taps_h.offset_step);
      } else {
        BarrierArriveExpect(full, Config::kWeightBytes);
        const int filter_tap =
            (sub.taps_h.tap + r * sub.taps_h.tap_step) * p.filter_width +
            sub.taps_w.tap + s * sub.taps_w.tap_step;
        uint32_t to = input + Config::kInputBytes;
#pragma unroll
        for (int i = 0; i < 3; ++i) {
#pragma unroll
          for (int n = 0; n < Config::kN; n += 64, to += kBf16x6BoxBytes) {
            LoadTile3(to, p.weights, full, tile.channel + n,
                      block * kBf16x6Depth, i * p.taps + filter_tap);
          }
        }
      }
      at.Advance();
      if (++block == p.channel_blocks) {
        block = 0;
        if (++s == sub.taps_w.count) s = 0, ++r;
      }
    }
  }
}

// A K slice's sum itself for two neighbours in `out`; padding is zeros as
// elsewhere.
template <int kSubs>
__device__ __noinline__ float2 DirectPair(const Bf16x6Problem<kSubs>& p,
                                          const ConvSubproblem& sub, int pixel,
                                          int channel, int begin, int end) {
  const int row = pixel / sub.cols, n = row / sub.rows;
  const int h0 = sub.input_h + (row - n * sub.rows) * sub.input_step_h;
  const int w0 = sub.input_w + (pixel - row * sub.cols) * sub.input_step_w;
  float2 sum = make_float2(0.0f, 0.0f);
  for (int i = begin; i < end; ++i) {
    const int tap = i / p.channel_blocks;
    const int first = (i - tap * p.channel_blocks) * kBf16x6Depth;
    const int r = tap / sub.taps_w.count, s = tap - r * sub.taps_w.count;
    const int h = h0 + r * sub.taps_h.offset_step;
    const int w = w0 + s * sub.taps_w.offset_step;
    const bool inside = static_cast<unsigned>(h) < p.height &&
                        static_cast<unsigned>(w) < p.width;
    const float* const x =
        p.in + ((int64_t{n} * p.height + h) * p.width + w) * p.depth;
    const int filter_tap =
        (sub.taps_h.tap + r * sub.taps_h.tap_step) * p.filter_width +
        sub.taps_w.tap + s * sub.taps_w.tap_step;
    const float* const weights = p.w +
                                 int64_t{filter_tap} * p.depth * p.channels +
                                 channel * p.w_channel;
    for (int c = first; c < min(first + kBf16x6Depth, p.depth); ++c) {
      const float a = inside ? x[c] : 0.0f;
      sum.x = fmaf(a, weights[c * p.w_depth], sum.x);
      sum.y = fmaf(a, weights[c * p.w_depth + p.w_channel], sum.y);
    }
  }
  return sum;
}

// Adds a K slice of a tile to what is there, or writes it. What is not finite
// is summed again: terms of infinities, and of numbers next to them, are nan.
template <typename Config, int kSubs>
__device__ __forceinline__ void StoreBf16x6(
    const Bf16x6Problem<kSubs>& p, const ConvTile& tile, int first_pixel,
    float* out, bool adds, int begin, int end,
    const float (&sum)[Config::kBlocks][Config::kN / 2]) {
  const ConvSubproblem& sub = *tile.sub;
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int m = 0; m < Config::kBlocks; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int pixel = first_pixel + m * 64 + half * 8;
      if (pixel >= sub.pixels) continue;
      const int row = pixel / sub.cols, n = row / sub.rows;
      const int h = sub.output_h + (row - n * sub.rows) * sub.output_step_h;
      const int w = sub.output_w + (pixel - row * sub.cols) * sub.output_step_w;
      float* const line =
          out +
          ((int64_t{n} * p.out_height + h) * p.out_width + w) * p.channels;
#pragma unroll
      for (int j = 0; j < Config::kN / 8; ++j) {
        const int channel = tile.channel + 8 * j + 2 * t;
        if (channel >= p.channels) continue;
        float2 v =
            make_float2(sum[m][4 * j + 2 * half], sum[m][4 * j + 2 * half + 1]);
        if (!(v.x * 0.0f + v.y * 0.0f == 0.0f)) {
          v = DirectPair(p, sub, pixel, channel, begin, end);
        }
        float2* const to = reinterpret_cast<float2*>(line + channel);
        if (adds) {
          const float2 old = *to;
          v = make_float2(old.x + v.x, old.y + v.y);
        }
        *to = v;
      }
    }
  }
}

template <typename Config, int kSubs>
__device__ __forceinline__ void ConsumeBf16x6(
    const Bf16x6Problem<kSubs>& p, int group, uint32_t ring,
    RingBarriers<Config::kStages>& barriers) {
  constexpr int kBlocks = Config::kBlocks;
  const int warp = threadIdx.x % kWarpgroup / 32;
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  // Of the 8 pixels of a group of rows, in an order in which lanes that load
  // together find other banks. The filter's rows are in the order in which
  // lanes take channels, 4 neighbours each (bf16x6_filter.cuh).
  const int line = group * Config::kGroupM + warp * 16 + g % 2 * 4 + g / 2;
  uint32_t k_slice[kBf16x6Steps];
#pragma unroll
  for (int k = 0; k < kBf16x6Steps; ++k) {
    k_slice[k] = line * 128 + ((4 * k + t ^ line % 8) << 4);
  }
  RingPosition<Config::kStages> at;
  const int units = Bf16x6Units(p);
  for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
    const Bf16x6Work work = Bf16x6WorkAt<Config>(p, unit);
    const int iterations = work.tile.iterations;
    float* const out =
        p.out + (p.split ? work.first_k_slice * p.k_slice_size : 0);
    for (int c = work.first_k_slice; c < work.last_k_slice; ++c) {
      const int begin = KSliceBegin(iterations, c, p.k_slices);
      const int end = KSliceBegin(iterations, c + 1, p.k_slices);
      float sum[kBlocks][Config::kN / 2];
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
        for (int i = 0; i < Config::kN / 2; ++i) sum[m][i] = 0.0f;
      }
      for (int i = begin; i < end; ++i) {
        BarrierWait(SharedAddress(&barriers.full[at.stage]), at.round);
        const uint32_t stage = ring + at.stage * Config::kStageBytes;
        Bf16x6Fragments<kBlocks> a;
#pragma unroll
        for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
          for (int k = 0; k < kBf16x6Steps; ++k) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              const float4 v =
                  LoadShared4(stage + k_slice[k] + (m * 64 + half * 8) * 128);
              a.Set(k, m, half, v.x, v.y);
              a.Set(k, m, half + 2, v.z, v.w);
            }
          }
        }
        MultiplyBf16x6<Config::kN>(sum, a, stage + Config::kInputBytes, [&] {
          if (threadIdx.x % 32 == 0) {
            BarrierArrive(SharedAddress(&barriers.empty[at.stage]));
          }
        });
        at.Advance();
      }
      StoreBf16x6<Config>(p, work.tile, work.tile.pixel + line, out,
                          c > work.first_k_slice, begin, end, sum);
    }
  }
}

template <typename Config, int kSubs>
__global__ void __launch_bounds__(kThreads, 1)
    Bf16x6ConvKernel(const __grid_constant__ Bf16x6Problem<kSubs> problem) {
  extern __shared__ uint8_t shared[];
  __shared__ RingBarriers<Config::kStages> barriers;
  const uint32_t ring = (SharedAddress(shared) + 1023) & ~1023u;
  if (threadIdx.x == 0) barriers.Init(2, kConsumers * kWarpgroup / 32);
  __syncthreads();
  const int warpgroup = threadIdx.x / kWarpgroup;
  if (warpgroup == 0) {
    GiveRegisters<kProducerRegisters>();
    if (threadIdx.x == 0) {
      IssueBf16x6Copies<Config, true>(problem, ring, barriers);
    } else if (threadIdx.x == 32) {
      IssueBf16x6Copies<Config, false>(problem, ring, barriers);
    }
  } else {
    TakeRegisters<kConsumerRegisters>();
    ConsumeBf16x6<Config>(problem, warpgroup - 1, ring, barriers);
  }
}

}  // namespace jax_convbatch::hopper
