// SPDX-License-Identifier: Apache-2.0
// wgrad of f32 by six products of bf16 (bf16x6_terms.cuh): x is cut into terms
// on its way to registers, dy within its stage by a warpgroup of its own. The
// rest is f32_wgrad.cuh's.
#pragma once

#include "cuda/sm90/kernels/bf16x6/bf16x6_terms.cuh"
#include "cuda/sm90/kernels/wgrad/f32_wgrad.cuh"

namespace jax_convbatch::hopper {

// What the sums themselves take, where a result is not finite.
struct Bf16x6WgradProblem : WgradProblem {
  const float *x_data, *dy_data;
  int images, height, width, out_width, pad_h, pad_w;
};

template <int kM, int kN, int kStages, int kTaps = 1>
struct Bf16x6WgradConfig : F32WgradTile<kM, kN, kStages, kTaps> {
  using Tile = F32WgradTile<kM, kN, kStages, kTaps>;
  // With 40 of the copies: what a block begins with, 128 x 512 or 96 x 640.
  static constexpr int kDyRegisters = kTaps == 1 ? 72 : 56;
  static constexpr int kMultiplierRegisters = kTaps == 1 ? 200 : 128;
  static constexpr int kTermBytes = kN / 64 * kBf16x6BoxBytes;
  static constexpr int kStageBytes =
      Tile::kXBytes + Tile::kDyBytes + 3 * kTermBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes + 1024;
};

// Rows of dw, two channels of a tap, that a multiplying thread has in a quad of
// accumulators, two columns of each.
struct Bf16x6Place {
  int tap, c, k;
};

template <typename Config>
__device__ __forceinline__ Bf16x6Place PlaceOf(const WgradProblem& problem,
                                               int tile, int quad, int thread) {
  constexpr int kColumnQuads = Config::kN / 8;
  const TapChannel first =
      FirstRow<Config>(problem, tile / problem.n_tiles, thread);
  const int k = tile % problem.n_tiles * Config::kN + quad % kColumnQuads * 8 +
                thread % 4 * 2;
  return {first.tap, first.c + quad / kColumnQuads * 2, k};
}

// One sum itself; padding is zeros as elsewhere.
static __device__ __noinline__ float DirectSum(const Bf16x6WgradProblem& p,
                                               int tap, int c, int k) {
  const int r = tap / p.filter_width, s = tap - r * p.filter_width;
  float sum = 0.0f;
  for (int n = 0; n < p.images; ++n) {
    for (int y = 0; y < p.rows; ++y) {
      for (int z = 0; z < p.out_width; ++z) {
        const int h = y * p.step_h - p.pad_h + r * p.dilation_h;
        const int w = z * p.step_w - p.pad_w + s * p.dilation_w;
        const bool inside = static_cast<unsigned>(h) < p.height &&
                            static_cast<unsigned>(w) < p.width;
        const float x =
            inside
                ? p.x_data[((int64_t{n} * p.height + h) * p.width + w) * p.C +
                           c]
                : 0.0f;
        sum = fmaf(
            x,
            p.dy_data[((int64_t{n} * p.rows + y) * p.out_width + z) * p.K + k],
            sum);
      }
    }
  }
  return sum;
}

template <typename Config>
__device__ __forceinline__ void WriteBf16x6Quad(
    const Bf16x6WgradProblem& problem, int tile, int quad, int thread,
    float4 v) {
  const Bf16x6Place at = PlaceOf<Config>(problem, tile, quad, thread);
  if (at.tap >= problem.taps || at.k >= problem.K) return;
  float* to = static_cast<float*>(problem.dw) +
              (int64_t{at.tap} * problem.C + at.c) * problem.K + at.k;
  float sums[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (at.c + i >= problem.C) return;
    float2 pair = make_float2(sums[2 * i], sums[2 * i + 1]);
    if (!(pair.x * 0.0f + pair.y * 0.0f == 0.0f)) {
      pair.x = DirectSum(problem, at.tap, at.c + i, at.k);
      pair.y = DirectSum(problem, at.tap, at.c + i, at.k + 1);
    }
    *reinterpret_cast<float2*>(to + i * int64_t{problem.K}) = pair;
  }
}

// Cuts the dy of every stage, 32 pixels of 32 channels a box, into terms, 32
// pixels of 64 channels a box. A thread takes 8 channels of a pixel at a time.
template <typename Config>
__device__ __forceinline__ void CutDy(const WgradProblem& problem,
                                      uint32_t ring,
                                      uint64_t (&loaded)[Config::kStages],
                                      RingBarriers<Config::kStages>& barriers) {
  constexpr int kBoxes = Config::kN / 64, kEach = 2 * kBoxes;
  const int thread = threadIdx.x % kWarpgroup;
  const int eight = thread % 8;
  uint32_t read[2], write[2];  // of two pixels
  bool turned = eight >= 4;    // lanes that load together find other banks
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int pixel = thread / 8 + 16 * i;
    const uint32_t row = Config::kXBytes + pixel * 128;
    read[i] = row + eight / 4 * kTf32BoxBytes +
              ((eight % 4 * 2 + turned ^ pixel % 8) << 4);
    write[i] = row + Config::kDyBytes + ((eight ^ pixel % 8) << 4);
  }
  RingPosition<Config::kStages> at;
  const int64_t steps =
      problem.Begin(blockIdx.x + 1) - problem.Begin(blockIdx.x);
  for (int64_t step = 0; step < steps; ++step) {
    const uint32_t stage = ring + at.stage * Config::kStageBytes;
    BarrierWait(SharedAddress(&loaded[at.stage]), at.round);
    float4 v[kEach][2];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const uint32_t from = stage + read[i % 2] + i / 2 * 2 * kTf32BoxBytes;
      const float4 a = LoadShared4(from), b = LoadShared4(from ^ 16);
      v[i][0] = turned ? b : a;
      v[i][1] = turned ? a : b;
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const float4 &a = v[i][0], &b = v[i][1];
      const PairTerms terms[4] = {TermsOfPair(a.x, a.y), TermsOfPair(a.z, a.w),
                                  TermsOfPair(b.x, b.y), TermsOfPair(b.z, b.w)};
      const uint32_t to = stage + write[i % 2] + i / 2 * kBf16x6BoxBytes;
      auto store = [&](int term, auto of) {
        StoreShared4(to + term * Config::kTermBytes,
                     make_float4(__uint_as_float(of(terms[0])),
                                 __uint_as_float(of(terms[1])),
                                 __uint_as_float(of(terms[2])),
                                 __uint_as_float(of(terms[3]))));
      };
      store(0, [](const PairTerms& p) { return p.high; });
      store(1, [](const PairTerms& p) { return p.middle; });
      store(2, [](const PairTerms& p) { return p.low; });
    }
    FenceAsyncProxy();
    __syncwarp();
    if (thread % 32 == 0) {
      BarrierArrive(SharedAddress(&barriers.full[at.stage]));
    }
    at.Advance();
  }
}

// The six products of a partial's stages.
template <typename Config, typename Loader>
__device__ __forceinline__ void MultiplyBf16x6Stages(
    float (&sum)[Config::kRows][Config::kN / 2], int steps, uint32_t x,
    uint32_t dy, const Loader& loader, RingBarriers<Config::kStages>& barriers,
    RingPosition<Config::kStages>& at) {
  constexpr int kRows = Config::kRows;
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
#pragma unroll
    for (int j = 0; j < Config::kN / 2; ++j) sum[m][j] = 0.0f;
  }
  for (int step = 0; step < steps; ++step) {
    BarrierWait(SharedAddress(&barriers.full[at.stage]), at.round);
    const uint32_t stage = at.stage * Config::kStageBytes;
    Bf16x6Fragments<kRows> a;
#pragma unroll
    for (int k = 0; k < kBf16x6Steps; ++k) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        // Rows of two pixels: of the first in [0] and [1].
        uint32_t v[kRows][4];
        loader.Load(x + stage, 2 * k + half, v);
#pragma unroll
        for (int m = 0; m < kRows; ++m) {
#pragma unroll
          for (int row = 0; row < 2; ++row) {
            a.Set(k, m, 2 * half + row, __uint_as_float(v[m][row]),
                  __uint_as_float(v[m][row + 2]));
          }
        }
      }
    }
    MultiplyBf16x6<Config::kN>(sum, a, dy + stage, [&] {
      if (threadIdx.x % 32 == 0) {
        BarrierArrive(SharedAddress(&barriers.empty[at.stage]));
      }
    });
    at.Advance();
  }
}

template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    Bf16x6WgradKernel(const __grid_constant__ Bf16x6WgradProblem problem) {
  RunF32Wgrad<Config>(
      problem,
      [&](uint32_t ring, auto& loaded, auto& barriers) {
        CutDy<Config>(problem, ring, loaded, barriers);
      },
      [&](uint32_t ring, auto& barriers) {
        const uint32_t dy = ring + Config::kXBytes + Config::kDyBytes;
        ConsumeF32Wgrad<Config>(
            problem, ring,
            [&](auto& sum, int steps, uint32_t x, const auto& loader,
                auto& at) {
              MultiplyBf16x6Stages<Config>(sum, steps, x, dy, loader, barriers,
                                           at);
            },
            [](const auto& sum, int quad) {
              constexpr int kColumnQuads = Config::kN / 8;
              const float* s =
                  &sum[quad / kColumnQuads][quad % kColumnQuads * 4];
              return make_float4(s[0], s[1], s[2], s[3]);
            },
            [&](int tile, int quad, int thread, float4 v) {
              WriteBf16x6Quad<Config>(problem, tile, quad, thread, v);
            });
      });
}

template <typename Config>
__global__ void __launch_bounds__(Config::kMultiplierThreads)
    AddWgradPartialsBf16x6(const __grid_constant__ Bf16x6WgradProblem problem) {
  const int tile = blockIdx.x / Config::kQuads;
  const int quad = blockIdx.x % Config::kQuads;
  float4 sum;
  if (SumPartials<Config>(problem, tile, quad, &sum)) {
    WriteBf16x6Quad<Config>(problem, tile, quad, threadIdx.x, sum);
  }
}

}  // namespace jax_convbatch::hopper
