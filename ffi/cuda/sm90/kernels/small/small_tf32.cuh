// SPDX-License-Identifier: Apache-2.0
// fprop and dgrad of f32 with 16 or 32 channels on either side, multiplied as
// TF32: small layers, whose time is what a kernel takes to begin and to end,
// and those that would not fill larger tiles. Tiles of the image and the whole
// filter come to shared memory by ordinary loads, all in flight at once and
// rounded on the way, and warps multiply by themselves (mma.sync): no
// descriptors to fetch, no roles, one barrier a tile.
//
// A product of 16 rows is 2 x 8 pixels. Of 16 channels of a pixel a lane takes
// four neighbouring ones, by one load, for two multiplications; so both
// operands permute the reduction in the same way.
//
// A sum's order is that of the taps and channels: it does not depend on the
// tile.
#pragma once

#include "activation_math.h"
#include "cuda/sm80/direct/staging.cuh"
#include "cuda/sm90/arch/mma_tf32.cuh"
#include "cuda/sm90/arch/ptx.cuh"
#include "cuda/sm90/arch/round_tf32.cuh"
#include "cuda/sm90/kernels/small/small_problem.h"
#include "cuda/sm90/problem/epilogue.h"

namespace jax_convbatch::hopper {

inline constexpr int kSmallThreads = 128;

// Tiles of kRows x kCols pixels. kFlipped: dgrad, which takes the taps from the
// last and the filter with its channels' roles exchanged. kTaps: of each side
// of the filter, or 0, any.
template <int kIn_, int kOut_, int kRows_, int kCols_, int kTaps_,
          bool kFlipped_>
struct SmallConfig {
  static constexpr int kIn = kIn_, kOut = kOut_, kTaps = kTaps_;
  static constexpr int kRows = kRows_, kCols = kCols_;
  static constexpr bool kFlipped = kFlipped_;
  // Words of a pixel in shared memory, and sixteens of channels.
  static constexpr int kPixel = kIn, kParts = kIn / 16;
  // Products, and how the four warps share them.
  static constexpr int kProducts = kRows / 2 * (kCols / 8);
  static constexpr int kAcross = kProducts < 4 ? 4 / kProducts : 1;
  static constexpr int kEach = kProducts * kAcross / 4;  // a warp's products
  static constexpr int kBlocks = kOut / 8 / kAcross;     // by 8 channels
  // Whether the next tile comes while this one is multiplied: where blocks have
  // many tiles, and none of many blocks waits for its first.
  static constexpr bool kAhead = kIn * kOut > 256;
  // Thread blocks of an SM, at most.
  static constexpr int kResident = kIn == 32 ? 3 : kOut == 32 ? 4 : 8;
  static_assert(kBlocks * kAcross * 8 == kOut && kEach * 4 / kAcross > 0);
};

// Where four channels of a pixel of a tile lie: two neighbouring pixels'
// sixteen channels fill all banks, also where there are more.
template <typename Config>
__device__ __forceinline__ int ChunkAt(int pixel, int chunk) {
  const int other = Config::kParts > 1 ? pixel % 2 * 4 : 0;
  return pixel * Config::kPixel + (chunk ^ other) * 4;
}

// Of 8 outputs and 16 inputs of a tap: where a lane's four inputs lie. Threads
// that store the filter's rows meet in few banks.
__device__ __forceinline__ int WeightsAt(int block, int output, int chunk) {
  return output * 4 + (chunk ^ ((output / 2 ^ block) & 3));
}

// Loads a filter by all threads of a block, rounded, each number to where
// at(tap, in, out) says; four neighbouring inputs lie side by side. kFlipped:
// as in SmallConfig.
template <int kIn, int kOut, bool kFlipped, int kUnroll, typename At>
__device__ __forceinline__ void LoadRounded(const float* w, int taps,
                                            int threads, At at, float* to) {
#pragma unroll kUnroll
  for (int i = threadIdx.x; i < taps * kIn * kOut / 4; i += threads) {
    const float4 v = RoundTf32(__ldg(reinterpret_cast<const float4*>(w) + i));
    if constexpr (kFlipped) {
      const int in = i * 4 % kIn, out = i * 4 / kIn % kOut;
      const int tap = taps - 1 - i * 4 / (kIn * kOut);
      *reinterpret_cast<float4*>(to + at(tap, in, out)) = v;
    } else {
      const int out = i * 4 % kOut, in = i * 4 / kOut % kIn;
      const int tap = i * 4 / (kIn * kOut);
      to[at(tap, in, out)] = v.x;
      to[at(tap, in, out + 1)] = v.y;
      to[at(tap, in, out + 2)] = v.z;
      to[at(tap, in, out + 3)] = v.w;
    }
  }
}

// [tap][16 inputs][8 outputs][lane][4 inputs].
template <typename Config>
__device__ __forceinline__ void LoadSmallFilter(const SmallProblem& problem,
                                                float* to) {
  constexpr int kIn = Config::kIn, kOut = Config::kOut;
  const int taps = problem.taps_h * problem.taps_w;
  auto at = [](int tap, int in, int out) {
    const int lane = WeightsAt(out / 8, out % 8, in % 16 / 4);
    const int part = tap * Config::kParts + in / 16;
    return ((part * (kOut / 8) + out / 8) * 32 + lane) * 4 + in % 4;
  };
  LoadRounded<kIn, kOut, Config::kFlipped, 4>(problem.w, taps, kSmallThreads,
                                              at, to);
}

struct SmallTile {
  int image, row, col;
};

template <typename Config>
__device__ __forceinline__ SmallTile SmallTileAt(const SmallProblem& problem,
                                                 uint32_t tile) {
  const int col = TakeDigit(problem.across, tile) * Config::kCols;
  const int row = TakeDigit(problem.down, tile) * Config::kRows;
  return {static_cast<int>(tile), row, col};
}

// The input pixels of a tile, zeros outside the image; rounded, or copied as
// they are and to be waited for.
template <typename Config>
__device__ __forceinline__ void LoadSmallTile(const SmallProblem& problem,
                                              const SmallTile& tile,
                                              float* to) {
  constexpr int kChunks = Config::kIn / 4;
  const float* const image = problem.in + int64_t{tile.image} * problem.in_h *
                                              problem.in_w * Config::kIn;
  const int count = problem.tile_in_h * problem.tile_in_w * kChunks;
#pragma unroll 4
  for (int i = threadIdx.x; i < count; i += kSmallThreads) {
    const int chunk = i % kChunks;
    uint32_t rest = i / kChunks;
    const int pixel = rest;
    const int w = tile.col +
                  static_cast<int>(TakeDigit(problem.divide_in_w, rest)) -
                  problem.pad_w;
    const int h = tile.row + static_cast<int>(rest) - problem.pad_h;
    const bool inside = static_cast<unsigned>(h) < problem.in_h &&
                        static_cast<unsigned>(w) < problem.in_w;
    const auto* const from = reinterpret_cast<const float4*>(
        image + (h * problem.in_w + w) * Config::kIn + chunk * 4);
    auto* const place =
        reinterpret_cast<float4*>(to + ChunkAt<Config>(pixel, chunk));
    if constexpr (Config::kAhead) {
      direct::CopyAsync16(reinterpret_cast<char*>(place),
                          inside ? from : static_cast<const void*>(problem.in),
                          inside);
    } else {
      *place = inside ? RoundTf32(__ldg(from)) : make_float4(0, 0, 0, 0);
    }
  }
}

// Four channels, rounded.
template <typename Config>
__device__ __forceinline__ float4 LoadPixel(const float* in, int pixel,
                                            int chunk) {
  const float4 v =
      *reinterpret_cast<const float4*>(in + ChunkAt<Config>(pixel, chunk));
  return Config::kAhead ? RoundTf32(v) : v;
}

// Two neighbouring channels.
__device__ __forceinline__ float2 LoadTwoOf(const void* from, int64_t at,
                                            float none) {
  return from == nullptr ? make_float2(none, none)
                         : __ldg(reinterpret_cast<const float2*>(
                               static_cast<const float*>(from) + at));
}

// Stores a lane's channels of a pixel, two of each 8, from element `at` of the
// result on and channel `channel`; four lanes share the pixel and all call.
template <int kBlocks>
__device__ __forceinline__ void StoreSmall(float* out, const Epilogue& e,
                                           bool is_there, int64_t at,
                                           int channel, float2 (&v)[kBlocks]) {
#pragma unroll
  for (int j = 0; j < kBlocks; ++j) {
    const float2 scale = LoadTwoOf(e.scale, channel + j * 8, 1.0f);
    const float2 bias = LoadTwoOf(e.bias, channel + j * 8, 0.0f);
    v[j] = make_float2(fmaf(v[j].x, scale.x, bias.x),
                       fmaf(v[j].y, scale.y, bias.y));
    if (!is_there) continue;
    if (e.residual != nullptr) {
      const float2 add = LoadTwoOf(e.residual, at + j * 8, 0.0f);
      v[j] = make_float2(v[j].x + add.x, v[j].y + add.y);
    }
    if (e.z != nullptr) {
      *reinterpret_cast<float2*>(static_cast<float*>(e.z) + at + j * 8) = v[j];
    }
  }
  DispatchActivation(e.activation, [&](auto tag) {
    constexpr Activation kActivation = decltype(tag)::value;
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
      v[j] = make_float2(Activate(kActivation, v[j].x),
                         Activate(kActivation, v[j].y));
    }
  });
  uint32_t bits = 0;
#pragma unroll
  for (int j = 0; j < kBlocks; ++j) {
    if (is_there) *reinterpret_cast<float2*>(out + at + j * 8) = v[j];
    bits |= ((v[j].x > 0) | (v[j].y > 0) << 1) << (8 * j);
  }
  if (e.bitmask == nullptr) return;
  bits <<= threadIdx.x % 4 * 2;
  bits |= __shfl_xor_sync(~0u, bits, 1);
  bits |= __shfl_xor_sync(~0u, bits, 2);
  if (!is_there || threadIdx.x % 4 != 0) return;
#pragma unroll
  for (int j = 0; j < kBlocks; ++j) {
    e.bitmask[at / 8 + j] = static_cast<uint8_t>(bits >> (8 * j));
  }
}

template <typename Config>
__device__ __forceinline__ void ComputeSmallTile(const SmallProblem& problem,
                                                 const Epilogue& epilogue,
                                                 const SmallTile& tile,
                                                 const float* filter,
                                                 const float* in) {
  constexpr int kAcross = Config::kAcross, kBlocks = Config::kBlocks;
  constexpr int kOut = Config::kOut;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first_block = warp % kAcross * kBlocks;
  const int first_product = warp / kAcross * Config::kEach;
  // Of each product, the lane's pixel in its first row.
  int rows[Config::kEach], cols[Config::kEach];
  // Two chains of multiplications, added at the end.
  float sums[2][Config::kEach][kBlocks][4] = {};
#pragma unroll
  for (int m = 0; m < Config::kEach; ++m) {
    const int product = first_product + m;
    rows[m] = product / (Config::kCols / 8) * 2;
    cols[m] = product % (Config::kCols / 8) * 8 + lane / 4;
  }
  const float4* weights =
      reinterpret_cast<const float4*>(filter) + first_block * 32;
  int places[kBlocks];
#pragma unroll
  for (int j = 0; j < kBlocks; ++j) {
    places[j] = j * 32 + WeightsAt(first_block + j, lane / 4, lane % 4);
  }
  const int taps_h = Config::kTaps == 0 ? problem.taps_h : Config::kTaps;
  const int taps_w = Config::kTaps == 0 ? problem.taps_w : Config::kTaps;
#pragma unroll
  for (int r = 0; r < taps_h; ++r) {
#pragma unroll
    for (int s = 0; s < taps_w; ++s) {
      const int tap =
          r * problem.dilation_h * problem.tile_in_w + s * problem.dilation_w;
#pragma unroll
      for (int part = 0; part < Config::kParts; ++part) {
        const int chunk = part * 4 + lane % 4;
        float4 b[kBlocks];
#pragma unroll
        for (int j = 0; j < kBlocks; ++j) b[j] = weights[places[j]];
        weights += kOut / 8 * 32;
#pragma unroll
        for (int m = 0; m < Config::kEach; ++m) {
          const int pixel = rows[m] * problem.tile_in_w + cols[m] + tap;
          const float4 low = LoadPixel<Config>(in, pixel, chunk);
          const float4 high =
              LoadPixel<Config>(in, pixel + problem.tile_in_w, chunk);
#pragma unroll
          for (int j = 0; j < kBlocks; ++j) {
            MultiplyTf32(sums[0][m][j], low.x, high.x, low.y, high.y, b[j].x,
                         b[j].y);
            MultiplyTf32(sums[1][m][j], low.z, high.z, low.w, high.w, b[j].z,
                         b[j].w);
          }
        }
      }
    }
  }
  const int64_t image = int64_t{tile.image} * problem.out_h * problem.out_w;
  const int channel = first_block * 8 + lane % 4 * 2;
#pragma unroll
  for (int m = 0; m < Config::kEach; ++m) {
    const int w = tile.col + cols[m];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int h = tile.row + rows[m] + half;
      const bool is_there = h < problem.out_h && w < problem.out_w;
      const int64_t at = (image + h * problem.out_w + w) * kOut + channel;
      float2 v[kBlocks];
#pragma unroll
      for (int j = 0; j < kBlocks; ++j) {
        const int i = half * 2;
        v[j] = make_float2(sums[0][m][j][i] + sums[1][m][j][i],
                           sums[0][m][j][i + 1] + sums[1][m][j][i + 1]);
      }
      if constexpr (!Config::kFlipped) {
        StoreSmall(problem.out, epilogue, is_there, at, channel, v);
      } else if (is_there) {
#pragma unroll
        for (int j = 0; j < kBlocks; ++j) {
          *reinterpret_cast<float2*>(problem.out + at + j * 8) = v[j];
        }
      }
    }
  }
}

template <typename Config>
__global__ void __launch_bounds__(kSmallThreads,
                                  Config::kResident > 4 ? 1 : Config::kResident)
    SmallKernel(const __grid_constant__ SmallProblem problem,
                const __grid_constant__ Epilogue epilogue) {
  extern __shared__ float small_shared[];
  float* const filter = small_shared;
  float* const in = small_shared + problem.taps_h * problem.taps_w *
                                       Config::kIn * Config::kOut;
  if constexpr (Config::kAhead) {
    float* const other =
        in + problem.tile_in_h * problem.tile_in_w * Config::kPixel;
    auto fetch = [&](int t, float* to) {
      if (t < problem.tiles) {
        LoadSmallTile<Config>(problem, SmallTileAt<Config>(problem, t), to);
      }
      direct::CommitCopies();
    };
    fetch(blockIdx.x, in);
    LoadSmallFilter<Config>(problem, filter);
    bool odd = false;
    for (int t = blockIdx.x; t < problem.tiles; t += gridDim.x) {
      fetch(t + gridDim.x, odd ? in : other);
      direct::WaitForCopies<1>();
      __syncthreads();
      ComputeSmallTile<Config>(problem, epilogue,
                               SmallTileAt<Config>(problem, t), filter,
                               odd ? other : in);
      __syncthreads();
      odd = !odd;
    }
    return;
  }
  LoadSmallFilter<Config>(problem, filter);
  for (int t = blockIdx.x; t < problem.tiles; t += gridDim.x) {
    const SmallTile tile = SmallTileAt<Config>(problem, t);
    if (t != static_cast<int>(blockIdx.x)) __syncthreads();
    LoadSmallTile<Config>(problem, tile, in);
    __syncthreads();
    ComputeSmallTile<Config>(problem, epilogue, tile, filter, in);
  }
}

}  // namespace jax_convbatch::hopper
