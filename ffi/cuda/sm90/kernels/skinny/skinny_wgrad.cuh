// SPDX-License-Identifier: Apache-2.0
// wgrad of 1x1 filters of few channels, which waits for memory alone, where dw
// is so small that a warp has all of it in registers (else skinny_ring.cuh):
// pixels come by ordinary loads to the registers from which they are
// multiplied. Each warp goes through pixels of its own; a block's warps then
// add their sums in order, and AddChunks those of the blocks.
//
// Lanes 4 g + t load the channels g of pixels t, t + 4, ... of a step: rows of
// whole sectors. In 16 bits the two pixels that share a register of a fragment
// are interleaved after that.
#pragma once

#include "cuda/common/dependent_launch.cuh"
#include "cuda/sm90/kernels/skinny/skinny_fragments.cuh"
#include "cuda/sm90/kernels/skinny/skinny_problem.h"
#include "cuda/sm90/kernels/skinny/skinny_tiling.h"

namespace jax_convbatch::hopper {

// How lanes share up to kChannels channels, which come in blocks of 8: a lane
// loads its elements of up to 16 bytes of blocks at once, as many as there are
// left.
template <typename T, int kChannels>
struct SkinnyBlocks {
  static constexpr int kBlocks = kChannels / 8;
  static constexpr int kWords = (kBlocks * static_cast<int>(sizeof(T)) + 3) / 4;

  // The widest loads come first, then at most one of each smaller width.
  static constexpr int kWidest = 16 / sizeof(T);
  static constexpr int kLast = kBlocks / kWidest * kWidest;
  static constexpr int kFours = (kBlocks - kLast) & 4;
  static constexpr int kTwos = (kBlocks - kLast) & 2;

  // Of the load that block j is in: blocks, and the first of them. Without
  // loops, so that the compiler knows them.
  static constexpr __host__ __device__ int Width(int j) {
    return j < kLast                    ? kWidest
           : j < kLast + kFours         ? 4
           : j < kLast + kFours + kTwos ? 2
                                        : 1;
  }
  static constexpr __host__ __device__ int First(int j) {
    return j < kLast                    ? j / kWidest * kWidest
           : j < kLast + kFours         ? kLast
           : j < kLast + kFours + kTwos ? kLast + kFours
                                        : kLast + kFours + kTwos;
  }
  // The channel of lanes 4 g + t in block j.
  static __device__ __forceinline__ int Channel(int g, int j) {
    return First(j) * 8 + g * Width(j) + j - First(j);
  }
};

// A lane's elements of kSlots pixels, 4 apart, from `from` on.
template <typename T, int kChannels, int kSlots>
struct SkinnyPixels {
  using Blocks = SkinnyBlocks<T, kChannels>;
  uint32_t words[kSlots][Blocks::kWords];

  __device__ __forceinline__ void Load(const T* from, int channels,
                                       int64_t left) {
    const int g = threadIdx.x % 32 / 4;
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
#pragma unroll
      for (int j = 0; j < Blocks::kBlocks; ++j) {
        if (Blocks::First(j) != j) continue;
        const int channel = Blocks::Channel(g, j);
        const bool is_there = 4 * s < left && channel < channels;
        const T* const at = from + 4 * s * channels + channel;
        uint32_t* const to = &words[s][j * sizeof(T) / 4];
        switch (Blocks::Width(j) * sizeof(T)) {
          case 16: {
            uint4 v = make_uint4(0, 0, 0, 0);
            if (is_there) v = __ldcs(reinterpret_cast<const uint4*>(at));
            to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
            break;
          }
          case 8: {
            uint2 v = make_uint2(0, 0);
            if (is_there) v = __ldcs(reinterpret_cast<const uint2*>(at));
            to[0] = v.x, to[1] = v.y;
            break;
          }
          case 4:
            to[0] = 0;
            if (is_there) to[0] = __ldcs(reinterpret_cast<const uint32_t*>(at));
            break;
          default:
            to[0] = 0;
            if (is_there) to[0] = __ldg(reinterpret_cast<const uint16_t*>(at));
        }
      }
    }
  }

  // The fragment's register of block j for the first pixels of a step, or for
  // the last.
  __device__ __forceinline__ uint32_t Fragment(int j, int last) const {
    if constexpr (std::is_same_v<T, float>) {
      return AsMultiplied<T>(words[last][j]);
    } else {
      return __byte_perm(words[2 * last][j / 2], words[2 * last + 1][j / 2],
                         j % 2 == 0 ? 0x5410 : 0x7632);
    }
  }
};

// Sums of up to kA channels of a, a multiple of 16, by kB of b. kUnroll: steps
// that a warp loads at once. kResident: blocks of an SM.
template <typename T_, int kA_, int kB_,
          int kUnroll_ = SkinnyWgradSteps(kA_, kB_),
          int kResident_ = kSkinnyWgradResident>
struct SkinnyWgradConfig {
  using T = T_;
  static constexpr int kA = kA_, kB = kB_;
  static constexpr int kUnroll = kUnroll_, kResident = kResident_;
  static constexpr int kSlots = 8 / sizeof(T);
  static constexpr int kStep = 4 * kSlots;  // pixels
  static constexpr int kRows = kA / 16, kColumns = kB / 8;
  using A = SkinnyPixels<T, kA, kSlots>;
  using B = SkinnyPixels<T, kB, kSlots>;
  using Sums = float[kRows][kColumns][4];
};

template <typename Config>
__device__ __forceinline__ void MultiplyStep(const typename Config::A& a,
                                             const typename Config::B& b,
                                             typename Config::Sums& sums) {
  uint32_t columns[Config::kColumns][2];
#pragma unroll
  for (int n = 0; n < Config::kColumns; ++n) {
    columns[n][0] = b.Fragment(n, 0);
    columns[n][1] = b.Fragment(n, 1);
  }
#pragma unroll
  for (int m = 0; m < Config::kRows; ++m) {
    const uint32_t a0 = a.Fragment(2 * m, 0), a1 = a.Fragment(2 * m + 1, 0);
    const uint32_t a2 = a.Fragment(2 * m, 1), a3 = a.Fragment(2 * m + 1, 1);
#pragma unroll
    for (int n = 0; n < Config::kColumns; ++n) {
      MultiplySkinny<typename Config::T>(sums[m][n], a0, a1, a2, a3,
                                         columns[n][0], columns[n][1]);
    }
  }
}

template <typename Config>
__global__ void __launch_bounds__(kSkinnyThreads, Config::kResident)
    SkinnyWgradKernel(const __grid_constant__ SkinnyWgradProblem p) {
  using T = typename Config::T;
  constexpr int kStep = Config::kStep, kPixels = kStep * Config::kUnroll;
  extern __shared__ __align__(16) float skinny_wgrad_shared[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t step = int64_t{gridDim.x} * kSkinnyWarps * kPixels;
  const int64_t begin =
      (int64_t{blockIdx.x} * kSkinnyWarps + warp) * kPixels + lane % 4;
  const T* a_at = static_cast<const T*>(p.a) + begin * p.a_channels;
  const T* b_at = static_cast<const T*>(p.b) + begin * p.b_channels;
  typename Config::Sums sums = {};
  for (int64_t left = p.pixels - begin; left > -(lane % 4); left -= step) {
    typename Config::A a[Config::kUnroll];
    typename Config::B b[Config::kUnroll];
#pragma unroll
    for (int i = 0; i < Config::kUnroll; ++i) {
      a[i].Load(a_at + i * kStep * p.a_channels, p.a_channels,
                left - i * kStep);
      b[i].Load(b_at + i * kStep * p.b_channels, p.b_channels,
                left - i * kStep);
    }
    a_at += step * p.a_channels;
    b_at += step * p.b_channels;
#pragma unroll
    for (int i = 0; i < Config::kUnroll; ++i) {
      MultiplyStep<Config>(a[i], b[i], sums);
    }
  }

  LaunchDependents();

  // All warps' sums beside each other.
  const int size = p.a_channels * p.b_channels;
  float* const own = skinny_wgrad_shared + warp * size;
#pragma unroll
  for (int m = 0; m < Config::kRows; ++m) {
#pragma unroll
    for (int n = 0; n < Config::kColumns; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = Config::A::Blocks::Channel(lane / 4, 2 * m + i / 2);
        const int column = Config::B::Blocks::Channel(lane % 4 * 2 + i % 2, n);
        if (row >= p.a_channels || column >= p.b_channels) continue;
        own[p.flipped ? column * p.a_channels + row
                      : row * p.b_channels + column] = sums[m][n][i];
      }
    }
  }
  __syncthreads();
  float* const partial = p.partials + int64_t{blockIdx.x} * size;
  for (int i = threadIdx.x; i < size; i += kSkinnyThreads) {
    float sum = skinny_wgrad_shared[i];
#pragma unroll
    for (int w = 1; w < kSkinnyWarps; ++w) {
      sum += skinny_wgrad_shared[w * size + i];
    }
    partial[i] = sum;
  }
}

}  // namespace jax_convbatch::hopper
