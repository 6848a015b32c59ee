// SPDX-License-Identifier: Apache-2.0
// fprop and dgrad of 1x1 filters of few channels, which wait for memory alone.
// Boxes of 64 channels would be mostly zeros here; so pixels come by ordinary
// loads to the registers from which they are multiplied, and results are stored
// from registers, 16 bytes of a pixel by each lane: rows of 64 bytes.
//
// Lanes 4 i + t of a warp have pixels i and i + 8 of 16. A lane's 16 bytes of
// 64 are four words, and two multiplications take two of them each: so the
// filter permutes the reduction as the lanes do, and likewise its columns, so
// that a lane's sums are neighbouring channels.
//
// A sum's order follows from the channels: it does not depend on the batch.
#pragma once

#include "cuda/common/floats.h"
#include "cuda/sm90/epilogue/lane_epilogue.cuh"
#include "cuda/sm90/kernels/skinny/skinny_fragments.cuh"
#include "cuda/sm90/kernels/skinny/skinny_problem.h"
#include "cuda/sm90/kernels/skinny/skinny_tiling.h"

namespace jax_convbatch::hopper {

// kIn: groups of 64 bytes of an input pixel, the last perhaps not full. kLayer:
// with an epilogue. kTiles: of 16 pixels that a warp has at a time. kResident:
// blocks of an SM.
template <typename T_, int kIn_, bool kLayer_,
          int kTiles_ = NarrowTile(kIn_) / 16,
          int kResident_ = SkinnyResident(kIn_)>
struct SkinnyConfig {
  using T = T_;
  static constexpr int kIn = kIn_, kTiles = kTiles_, kResident = kResident_;
  static constexpr bool kLayer = kLayer_;
  static constexpr int kLane = 16 / sizeof(T);      // channels of a lane
  static constexpr int kChannels = 64 / sizeof(T);  // of a group
  static constexpr int kColumns = kChannels / 8;    // eights of a group
  // A lane's quads of the filter for two groups: two words of each step.
  static constexpr int kQuads = kColumns;
  static constexpr int kPixels = 16 * kTiles;
};

// Which lanes change places, so that threads that lay out neighbouring elements
// of the filter meet in few banks; eight lanes that read together do not.
__device__ __forceinline__ int FilterSwizzle(int lane, int part) {
  return lane / 8 | part % 2 * 4;
}

// A lane's words of the filter for input group i and output group o: quad q of
// kQuads is at [(part kQuads + q) 32 + lane], but for the swizzle, of part
// o kIn + i.
template <typename Config>
__device__ __forceinline__ int FilterWord(int in, int out) {
  constexpr int kChannels = Config::kChannels, kLane = Config::kLane;
  const int lane_in = in % kChannels / kLane;
  const int word = in % kLane * 4 / kLane;  // of the lane's four
  const int lane_out = out % kChannels / kLane;
  const int column = out % kLane / 2, odd = out % 2;
  // Words of a step: two for each eight columns.
  const int at = word / 2 * (2 * Config::kColumns) + column * 2 + word % 2;
  const int lane = (lane_out * 2 + odd) * 4 + lane_in;
  const int part = out / kChannels * Config::kIn + in / kChannels;
  const int place = lane ^ FilterSwizzle(lane, part);
  return ((part * Config::kQuads + at / 4) * 32 + place) * 4 + at % 4;
}

template <typename Config>
JCB_HOST_DEVICE int FilterParts(const SkinnyProblem& p) {
  return (p.out_channels + Config::kChannels - 1) / Config::kChannels *
         Config::kIn * Config::kQuads;
}

template <typename Config>
int FilterBytes(const SkinnyProblem& p) {
  return FilterParts<Config>(p) * 32 * static_cast<int>(sizeof(uint4));
}

template <typename Config>
__device__ __forceinline__ void LoadSkinnyFilter(const SkinnyProblem& p,
                                                 char* to) {
  using T = typename Config::T;
  constexpr int kLane = Config::kLane;
  if (p.in_channels % Config::kChannels != 0 ||
      p.out_channels % Config::kChannels != 0) {
    for (int i = threadIdx.x; i < FilterParts<Config>(p) * 32;
         i += kSkinnyThreads) {
      reinterpret_cast<uint4*>(to)[i] = make_uint4(0, 0, 0, 0);
    }
    __syncthreads();
  }
  const int count = p.in_channels * p.out_channels / kLane;
  for (int i = threadIdx.x; i < count; i += kSkinnyThreads) {
    const auto v = reinterpret_cast<const Vector<T, kLane>*>(p.w)[i];
    uint32_t row = i * kLane;
    const int column = static_cast<int>(TakeDigit(p.divide_row, row));
#pragma unroll
    for (int e = 0; e < kLane; ++e) {
      const int in = p.flipped ? column + e : row;
      const int out = p.flipped ? row : column + e;
      const int word = FilterWord<Config>(in, out);
      if constexpr (std::is_same_v<T, float>) {
        reinterpret_cast<float*>(to)[word] = RoundTf32(v.values[e]);
      } else {
        reinterpret_cast<T*>(to)[word * 2 + in % 2] = v.values[e];
      }
    }
  }
}

// A lane's 16 bytes of each group of its pixels.
template <typename Config>
using SkinnyInputs = uint4[Config::kTiles][2][Config::kIn];

template <typename Config>
__device__ __forceinline__ void LoadSkinny(const SkinnyProblem& p,
                                           int64_t first,
                                           SkinnyInputs<Config>& to) {
  const int lane = threadIdx.x % 32;
  const int chunks = p.in_channels / Config::kLane;
  const auto* const from =
      static_cast<const uint4*>(p.in) + (first + lane / 4) * chunks + lane % 4;
  const int64_t left = p.pixels - first - lane / 4;
#pragma unroll
  for (int m = 0; m < Config::kTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int pixel = m * 16 + half * 8;
#pragma unroll
      for (int i = 0; i < Config::kIn; ++i) {
        const bool is_there = pixel < left && i * 4 + lane % 4 < chunks;
        to[m][half][i] = is_there ? __ldcs(from + pixel * chunks + i * 4)
                                  : make_uint4(0, 0, 0, 0);
      }
    }
  }
}

// All output channels of a warp's pixels from `first` on.
template <typename Config>
__device__ __forceinline__ void MultiplyPixels(const SkinnyProblem& p,
                                               const Epilogue& e,
                                               const uint4* filter,
                                               int64_t first,
                                               SkinnyInputs<Config>& a) {
  using T = typename Config::T;
  constexpr int kLane = Config::kLane, kColumns = Config::kColumns;
  const int lane = threadIdx.x % 32;
  const int chunks = p.out_channels / kLane;
  const int64_t left = p.pixels - first - lane / 4;
  auto* const out =
      static_cast<uint4*>(p.out) + (first + lane / 4) * chunks + lane % 4;
  if constexpr (std::is_same_v<T, float>) {
#pragma unroll
    for (auto& tile : a) {
#pragma unroll
      for (auto& half : tile) {
#pragma unroll
        for (uint4& v : half) {
          v = make_uint4(AsMultiplied<T>(v.x), AsMultiplied<T>(v.y),
                         AsMultiplied<T>(v.z), AsMultiplied<T>(v.w));
        }
      }
    }
  }
  int part = 0;
#pragma unroll 1
  for (int chunk = lane % 4; chunk - lane % 4 < chunks; chunk += 4) {
    float sums[Config::kTiles][kColumns][4] = {};
#pragma unroll
    for (int i = 0; i < Config::kIn; ++i, ++part) {
      const uint4* quad = filter + part * (Config::kQuads * 32) +
                          (lane ^ FilterSwizzle(lane, part));
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        uint32_t b[kColumns][2];
#pragma unroll
        for (int q = 0; q < kColumns / 2; ++q) {
          const uint4 v = *quad;
          quad += 32;
          b[2 * q][0] = v.x, b[2 * q][1] = v.y;
          b[2 * q + 1][0] = v.z, b[2 * q + 1][1] = v.w;
        }
#pragma unroll
        for (int m = 0; m < Config::kTiles; ++m) {
          const uint4 &low = a[m][0][i], &high = a[m][1][i];
#pragma unroll
          for (int n = 0; n < kColumns; ++n) {
            MultiplySkinny<T>(sums[m][n], step == 0 ? low.x : low.z,
                              step == 0 ? high.x : high.z,
                              step == 0 ? low.y : low.w,
                              step == 0 ? high.y : high.w, b[n][0], b[n][1]);
          }
        }
      }
    }
    const bool has = chunk < chunks;
    const LaneEpilogue<T> epilogue(e, chunk * kLane, has && Config::kLayer);
#pragma unroll
    for (int m = 0; m < Config::kTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int pixel = m * 16 + half * 8;
        const bool is_there = has && pixel < left;
        float v[kLane];
#pragma unroll
        for (int n = 0; n < kColumns; ++n) {
          v[2 * n] = sums[m][n][2 * half];
          v[2 * n + 1] = sums[m][n][2 * half + 1];
        }
        uint4 y;
        if constexpr (Config::kLayer) {
          const int64_t row = first + lane / 4 + pixel;
          y = epilogue.Apply(is_there, (row * chunks + chunk) * kLane, v);
        } else {
          y = PackLane<T>(v);
        }
        if (is_there) out[pixel * chunks + chunk - lane % 4] = y;
      }
    }
  }
}

template <typename Config>
__global__ void __launch_bounds__(kSkinnyThreads, Config::kResident)
    SkinnyKernel(const __grid_constant__ SkinnyProblem p,
                 const __grid_constant__ Epilogue e) {
  extern __shared__ __align__(16) char skinny_shared[];
  const auto* const filter = reinterpret_cast<const uint4*>(skinny_shared);
  const int64_t step = int64_t{gridDim.x} * kSkinnyWarps * Config::kPixels;
  int64_t first =
      (int64_t{blockIdx.x} * kSkinnyWarps + threadIdx.x / 32) * Config::kPixels;
  SkinnyInputs<Config> a;
  LoadSkinny<Config>(p, first, a);  // while the filter is laid out
  LoadSkinnyFilter<Config>(p, skinny_shared);
  __syncthreads();
  for (; first < p.pixels; first += 2 * step) {
    SkinnyInputs<Config> next;
    LoadSkinny<Config>(p, first + step, next);
    MultiplyPixels<Config>(p, e, filter, first, a);
    if (first + step >= p.pixels) return;
    LoadSkinny<Config>(p, first + 2 * step, a);
    MultiplyPixels<Config>(p, e, filter, first + step, next);
  }
}

}  // namespace jax_convbatch::hopper
