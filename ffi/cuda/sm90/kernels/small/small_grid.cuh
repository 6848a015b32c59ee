// SPDX-License-Identifier: Apache-2.0
// f32 images of 16 or 32 channels in shared memory, as grids of places that
// hold TF32 for the multiplier: what small_grid_conv.cuh and small_backward.cuh
// have in common.
//
// [place][channel], swizzled: a column of zeros follows each row and a row of
// zeros each image, which is what TMA gives for what lies outside the image. So
// the place that a tap of a 3x3 filter reads is a fixed distance from its
// pixel's, also over the edge, and a product's 64 rows are 64 neighbouring
// places from any on.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_SMALL_SMALL_GRID_CUH_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_SMALL_SMALL_GRID_CUH_

#include "cuda/sm90/arch/ptx.cuh"
#include "cuda/sm90/arch/wgmma.cuh"
#include "cuda/sm90/kernels/small/small_grid.h"
#include "cuda/sm90/kernels/small/small_tf32.cuh"

namespace jax_convbatch::hopper {

// d += a b, 64 x 16.
__device__ __forceinline__ void WgmmaTf32By16(float (&d)[8], uint64_t a,
                                              uint64_t b) {
  asm volatile(
      "{\n.reg .pred always;\nsetp.eq.u32 always, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n16k8.f32.tf32.tf32 "
      "{%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, always, 1, 1;\n}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
        "+f"(d[6]), "+f"(d[7])
      : "l"(a), "l"(b));
}

// Where four words of a row of kChannels lie: the swizzle of 128 or 64 bytes.
// Rows follow each other from a multiple of 1024 bytes on.
template <int kChannels>
__device__ __forceinline__ int Swizzled(int row, int four) {
  return four ^ (kChannels == 32 ? row % 8 : row / 2 % 4);
}

// Of rows of kChannels floats.
template <int kChannels>
__device__ __forceinline__ uint64_t RowsDescriptor(uint32_t address) {
  if constexpr (kChannels == 32) {
    return Descriptor(address);
  } else {
    return uint64_t{512 >> 4} << 32 | uint64_t{2} << 62 |
           (address & 0x3FFFF) >> 4;
  }
}

// Zeros in a stage where no copy comes. By all threads of a block.
template <int kThreads>
__device__ __forceinline__ void ClearBorders(const SmallGrid& grid,
                                             int channels, float* stage) {
  const int first = grid.first * channels / 4, box = grid.box * channels / 4;
  for (int i = threadIdx.x; i < grid.words(channels) / 4 - box; i += kThreads) {
    reinterpret_cast<float4*>(stage)[i < first ? i : i + box] =
        make_float4(0, 0, 0, 0);
  }
}

// Which of the grid's pixels a place has, -1 where none. By all threads.
template <int kThreads>
__device__ __forceinline__ void FillPixels(const SmallGrid& grid, int H, int W,
                                           int16_t* pixel_of) {
  for (int i = threadIdx.x; i < grid.places; i += kThreads) {
    const int at = i - grid.first;
    const int row = at / (W + 1), col = at - row * (W + 1);
    const int image = row / (H + 1), h = row - image * (H + 1);
    const bool is_there = at >= 0 && at < grid.box && col < W && h < H;
    pixel_of[i] =
        static_cast<int16_t>(is_there ? (image * H + h) * W + col : -1);
  }
}

// The filter as products take it: for each tap kOut rows of kIn numbers. The
// rows are in an order that gives a lane neighbouring results, kEach of them.
// kFlipped: dgrad's, as in small_tf32.cuh.
template <int kIn, int kOut, bool kFlipped>
struct GridFilter {
  static constexpr int kEach = kOut / 4;
  static constexpr int kWords = 9 * kIn * kOut;
  using Sums = float[kOut / 2];

  // The first of a lane's results.
  __device__ static int First() { return threadIdx.x % 4 * kEach; }

  template <int kThreads>
  __device__ static void Load(const float* w, float* to) {
    auto at = [](int tap, int in, int out) {
      const int i = out % kEach;
      const int row = i / 2 * 8 + out / kEach * 2 + i % 2;
      return (tap * kOut + row) * kIn + Swizzled<kIn>(row, in / 4) * 4 + in % 4;
    };
    LoadRounded<kIn, kOut, kFlipped, 9>(w, 9, kThreads, at, to);
  }

  // kBlocks times 64 places, from `place` on and `apart` places apart, times
  // the filter; to be waited for. Blocks take turns, as each product of a block
  // waits for the one before.
  template <int kBlocks>
  __device__ __forceinline__ static void Multiply(uint32_t grid,
                                                  uint32_t filter, int place,
                                                  int apart, int W,
                                                  Sums (&sums)[kBlocks]) {
    constexpr int kRow = kIn * 4;  // bytes
    constexpr uint64_t kStep = kReductionStep<Contiguous::kReduction>;
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int i = 0; i < kOut / 2; ++i) sums[m][i] = 0.0f;
    }
    const uint64_t weights = RowsDescriptor<kIn>(filter);
    WgmmaFence();
#pragma unroll
    for (int r = 0; r < 3; ++r) {
      uint64_t rows[kBlocks];
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
        const int from = place + m * apart + (r - 1) * (W + 1) - 1;
        rows[m] = RowsDescriptor<kIn>(grid + from * kRow);
      }
#pragma unroll
      for (int i = 0; i < 3 * kIn / 8; ++i) {
        const int s = i / (kIn / 8), k = i % (kIn / 8);
        const uint64_t a = (s * kRow >> 4) + k * kStep;
        const uint64_t b =
            weights + ((r * 3 + s) * kOut * kRow >> 4) + k * kStep;
#pragma unroll
        for (int m = 0; m < kBlocks; ++m) {
          if constexpr (kOut == 32) {
            WgmmaTf32<32>(sums[m], rows[m] + a, b);
          } else {
            WgmmaTf32By16(sums[m], rows[m] + a, b);
          }
        }
      }
    }
    WgmmaCommit();
  }

  // By a warpgroup: blocks `first`, `first + step`, ... of the grid. Calls
  // store(place, v) for each lane's two places of a block, pixel or not, with
  // its results; all lanes call.
  template <typename Store>
  __device__ __forceinline__ static void ForBlocks(const SmallGrid& grid,
                                                   uint32_t pixels,
                                                   uint32_t filter, int W,
                                                   int first, int step,
                                                   Store store) {
    auto take = [&](int m, const Sums& sums) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float v[kEach];
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
          v[i] = sums[i / 2 * 4 + half * 2 + i % 2];
        }
        const int row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
        store(grid.first + m * 64 + row + half * 8, v);
      }
    };
    int m = first;
    for (; m + step < grid.blocks; m += 2 * step) {
      Sums sums[2];
      Multiply(pixels, filter, grid.first + m * 64, step * 64, W, sums);
      WgmmaWait<0>();
      take(m, sums[0]);
      take(m + step, sums[1]);
    }
    if (m < grid.blocks) {
      Sums sums[1];
      Multiply(pixels, filter, grid.first + m * 64, 0, W, sums);
      WgmmaWait<0>();
      take(m, sums[0]);
    }
  }
};

template <int kEach>
__device__ __forceinline__ void StoreFours(float* to, const float (&v)[kEach]) {
#pragma unroll
  for (int i = 0; i < kEach; i += 4) {
    reinterpret_cast<float4*>(to)[i / 4] =
        make_float4(v[i], v[i + 1], v[i + 2], v[i + 3]);
  }
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_SMALL_SMALL_GRID_CUH_
