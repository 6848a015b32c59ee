// SPDX-License-Identifier: Apache-2.0
// The way in: copies of x's halos and of weights by one warp, and other warps
// that make act(scale x + shift) of a halo where it lies.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_NORM_ACT_NORM_ACT_HALO_CUH_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_NORM_ACT_NORM_ACT_HALO_CUH_

#include "cuda/sm90/arch/bulk_copy.cuh"
#include "cuda/sm90/arch/registers.cuh"
#include "cuda/sm90/epilogue/epilogue.cuh"
#include "cuda/sm90/kernels/norm_act/norm_act_config.cuh"

namespace jax_convbatch::hopper {

// The halos of a block's tiles, channels of 64 at a time, by one thread.
template <typename Config>
struct HaloCopies {
  const NormActProblem& problem;
  uint32_t shared;
  NormActBarriers<Config>& barriers;
  RingPosition<Config::kHalos> at;
  int tile = blockIdx.x, block = 0;
  NormActPlace place = PlaceOf<Config>(problem, tile);

  // scale and shift of channels from `channel` on, of the tile's images.
  __device__ void CopyFactors(int channel, int bytes, uint32_t full) {
    uint32_t to =
        shared + Config::kFactorOffset + at.stage * Config::kFactorBytes;
    for (int i = 0; i < problem.tile_images; ++i) {
      const int image = min(place.image + i, problem.n - 1);
      const int64_t from = int64_t{image} * problem.factor_step + channel;
      LoadBytes(to, problem.scale + from, full, bytes);
      LoadBytes(to + 256, problem.shift + from, full, bytes);
      to += 512;
    }
  }

  __device__ void CopyNext() {
    if (tile >= problem.tiles) return;
    const uint32_t full = SharedAddress(&barriers.copied[at.stage]);
    const int channel = block * 64;
    BarrierWait(SharedAddress(&barriers.used[at.stage]), at.round ^ 1);
    int bytes = problem.halo_pixels * 128;
    if constexpr (!Config::kGradient) {
      const int of_factor = 4 * min(64, problem.c - channel);
      bytes += problem.tile_images * 2 * of_factor;
      CopyFactors(channel, of_factor, full);
    }
    BarrierArriveExpect(full, bytes);
    LoadTile4(shared + at.stage * Config::kHaloBytes, problem.input, full,
              channel, place.col - problem.pad_w, place.row - problem.pad_h,
              place.image);
    at.Advance();
    if (++block == problem.channel_blocks) {
      block = 0;
      tile += gridDim.x;
      place = PlaceOf<Config>(problem, tile);
    }
  }
};

// By one thread. A halo is copied before the weights of the one before it, as
// it is activated after that.
template <typename Config>
__device__ __forceinline__ void CopyHalosAndWeights(
    const NormActProblem& problem, uint32_t shared,
    NormActBarriers<Config>& barriers) {
  constexpr int kAhead = Config::kHalos - 2;
  HaloCopies<Config> halos{problem, shared, barriers};
  for (int i = 0; i < kAhead; ++i) halos.CopyNext();
  RingPosition<Config::kStages> at;
  const int taps = problem.taps_h * problem.taps_w;
  ForNormActTiles<Config>(problem, [&](const NormActPlace& place, int) {
    for (int block = 0; block < problem.channel_blocks; ++block) {
      halos.CopyNext();
      for (int tap = 0; tap < taps; ++tap) {
        const uint32_t full = SharedAddress(&barriers.weights.full[at.stage]);
        const uint32_t to =
            shared + Config::kWeightOffset + at.stage * Config::kWeightBytes;
        BarrierWait(SharedAddress(&barriers.weights.empty[at.stage]),
                    at.round ^ 1);
        BarrierArriveExpect(full, Config::kWeightBytes);
#pragma unroll
        for (int i = 0; i < Config::kWeightBoxes; ++i) {
          if constexpr (Config::kGradient) {  // its taps are in reverse
            LoadTile3(to, problem.weights, full, block * 64, place.channel,
                      taps - 1 - tap);
          } else {
            LoadTile3(to + i * kBoxBytes, problem.weights, full,
                      place.channel + i * 64, block * 64, tap);
          }
        }
        at.Advance();
      }
    }
  });
}

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
  static_assert(kMaxHaloPixels <= 32 * kStep);
  uint32_t inside = 0;

  __device__ __forceinline__ HaloPixels(const NormActProblem& problem,
                                        const NormActPlace& place, int first,
                                        int image) {
    const int top = place.row - problem.pad_h;
    const int left = place.col - problem.pad_w;
    const int end = problem.halo_cols * problem.halo_rows;
    if (place.image + image >= problem.n) return;
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
__device__ __forceinline__ void ActivateHalos(
    const NormActProblem& problem, int warp, uint32_t shared,
    NormActBarriers<Config>& barriers) {
  using T = typename Config::T;
  const int lane = threadIdx.x % 32, chunk = lane % 8;
  const int of_image = problem.halo_cols * problem.halo_rows;
  RingPosition<Config::kHalos> at;
  DispatchActivation(problem.activation, [&](auto tag) {
    ForNormActTiles<Config>(problem, [&](const NormActPlace& place, int) {
      const int first = warp * 4 + lane / 8;
      const HaloPixels pixels(problem, place, first, 0);
      for (int block = 0; block < problem.channel_blocks; ++block) {
        const uint32_t halo = shared + at.stage * Config::kHaloBytes;
        const uint32_t factors = shared + Config::kFactorOffset +
                                 at.stage * Config::kFactorBytes + chunk * 32;
        auto activate = [&](const HaloPixels& those, int pixel, int image) {
          ActivatePixels<T, decltype(tag)::value>(
              those, halo + pixel * 128 + ((chunk ^ pixel % 8) << 4),
              factors + image * 512);
        };
        BarrierWait(SharedAddress(&barriers.copied[at.stage]), at.round);
        // Channels that x does not have are zeros, and have no factors.
        if (block * 64 + chunk * 8 < problem.c) {
          activate(pixels, first, 0);
          if (problem.tile == NormActTile::kImages) {
            activate(HaloPixels(problem, place, first, 1), of_image + first, 1);
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

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_NORM_ACT_NORM_ACT_HALO_CUH_
