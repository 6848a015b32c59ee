// SPDX-License-Identifier: Apache-2.0
// act(scale x + shift) of a halo where it lies in shared memory, by warps of
// their own.
#pragma once

#include "cuda/sm90/arch/registers.cuh"
#include "cuda/sm90/epilogue/epilogue.cuh"
#include "cuda/sm90/kernels/halo/halo_config.cuh"
#include "cuda/sm90/kernels/norm_act/norm_act.h"
#include "cuda/sm90/kernels/norm_act/norm_act_problem.h"

namespace jax_convbatch::hopper {

// Warps.
inline constexpr int kActivators = 6;

// Eight channels of a pixel.
template <typename T, Activation kActivation>
__device__ __forceinline__ float4 ActivateEight(const float4& x,
                                                const float (&scale)[8],
                                                const float (&shift)[8]) {
  const float words[4] = {x.x, x.y, x.z, x.w};
  float out[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 two = Unpack<T>(__float_as_uint(words[i]));
    out[i] = __uint_as_float(PackActivated<T, kActivation>(
        fmaf(two.x, scale[2 * i], shift[2 * i]),
        fmaf(two.y, scale[2 * i + 1], shift[2 * i + 1])));
  }
  return {out[0], out[1], out[2], out[3]};
}

// The pixels of one image's halo that a lane activates: the first, and whether
// each lies inside of the image, the first in the lowest bit. What lies outside
// is padding, and stays 0.
struct HaloPixels {
  static constexpr int kStep = kActivators * 4;
  static_assert(kStep % 8 == 0, "a lane's pixels have the same swizzle");
  static_assert(kMaxNormActHaloPixels <= 32 * kStep);
  uint32_t inside = 0;

  // Of the halo under a tile's block m.
  __device__ __forceinline__ HaloPixels(const HaloProblem& problem, int pixels,
                                        int first, int m) {
    const HaloBlock block = BlockOf(problem, pixels, m);
    const int top = block.row - problem.pad_h;
    const int left = block.col - problem.pad_w;
    const int end = int(problem.halo_cols) * problem.halo_rows;
    if (block.slice >= problem.n) return;
    for (int p = first, bit = 1; p < end; p += kStep, bit *= 2) {
      const int line = p / problem.halo_cols;
      const int row = line + top, col = p - line * problem.halo_cols + left;
      if (static_cast<unsigned>(row) < unsigned(problem.h) &&
          static_cast<unsigned>(col) < unsigned(problem.w)) {
        inside |= bit;
      }
    }
  }
};

// Eight channels of them, two pixels at a time: each is a chain of some 100
// cycles. `factors`: scale of the eight, and shift 256 bytes on.
template <typename T, Activation kActivation>
__device__ __forceinline__ void ActivatePixels(HaloPixels pixels,
                                               uint32_t address,
                                               uint32_t factors) {
  float scale[8], shift[8];
#pragma unroll
  for (int i = 0; i < 8; i += 4) {
    *reinterpret_cast<float4*>(scale + i) = LoadShared4(factors + i * 4);
    *reinterpret_cast<float4*>(shift + i) = LoadShared4(factors + 256 + i * 4);
  }
  constexpr int kNext = HaloPixels::kStep * 128;
#pragma unroll 1
  for (; pixels.inside != 0; pixels.inside >>= 2, address += 2 * kNext) {
    float4 x[2];
#pragma unroll
    for (int u = 0; u < 2; ++u) x[u] = LoadShared4(address + u * kNext);
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      x[u] = ActivateEight<T, kActivation>(x[u], scale, shift);
    }
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      if (pixels.inside >> u & 1) StoreShared4(address + u * kNext, x[u]);
    }
  }
}

// By the warps of the activators, number `warp` of them.
template <typename Config>
__device__ __forceinline__ void ActivateHalos(const NormActProblem& problem,
                                              int warp, uint32_t shared,
                                              HaloBarriers<Config>& barriers) {
  using T = typename Config::T;
  const int lane = threadIdx.x % 32, chunk = lane % 8;
  const int of_unit = int(problem.halo_cols) * problem.halo_rows;
  RingPosition<Config::kHalos> at;
  DispatchActivation(problem.activation, [&](auto tag) {
    ForHaloTiles<Config>(problem, [&](const HaloPlace& place, int) {
      const int first = warp * 4 + lane / 8;
      const HaloPixels pixels(problem, place.pixels, first, 0);
      for (int block = 0; block < problem.channel_blocks; ++block) {
        const uint32_t halo = shared + at.stage * Config::kHaloBytes;
        const uint32_t factors = shared + Config::kFactorOffset +
                                 at.stage * Config::kFactorBytes + chunk * 32;
        auto activate = [&](const HaloPixels& those, int pixel, int m) {
          ActivatePixels<T, decltype(tag)::value>(
              those, halo + pixel * 128 + ((chunk ^ pixel % 8) << 4),
              factors + m * 512);
        };
        BarrierWait(SharedAddress(&barriers.copied[at.stage]), at.round);
        // Channels that x does not have are zeros, and have no factors.
        if (block * 64 + chunk * 8 < problem.c) {
          activate(pixels, first, 0);
          if (problem.halos > 1) {
            activate(HaloPixels(problem, place.pixels, first, 1),
                     of_unit + first, 1);
          }
        }
        FenceAsyncProxy();
        __syncwarp();
        if (lane == 0) {
          BarrierArrive(SharedAddress(&barriers.activated[at.stage]));
        }
        at.Advance();
      }
    });
  });
}

}  // namespace jax_convbatch::hopper
