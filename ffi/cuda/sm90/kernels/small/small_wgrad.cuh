// SPDX-License-Identifier: Apache-2.0
// wgrad of f32 3x3 filters with 16 or 32 channels on either side, multiplied as
// TF32. A tile is a few whole rows of an image, dy and the x that they meet,
// copied as they are; each warp multiplies x transposed by dy for the taps of
// one filter row, over every fourth eight of the tile's pixels, by mma.sync.
//
// A block adds all its tiles in registers, in order.
#pragma once

#include "cuda/common/fast_divmod.h"
#include "cuda/sm80/direct/staging.cuh"
#include "cuda/sm90/kernels/small/small_tf32.cuh"

namespace jax_convbatch::hopper {

struct SmallWgradProblem {
  const float *x, *dy;
  float* partials;  // [blocks, taps, C, K]
  int H, W, P, Q, pad_h, pad_w;
  int rows;                   // of a tile
  FastDivmod<uint32_t> down;  // tiles of an image
  FastDivmod<uint32_t> divide_q, divide_in_w;
  int tiles;
};

// The most pixels of a tile; what follows them is zeros.
inline constexpr int kSmallPixels = 128, kSmallInputs = 192;

template <int kIn_, int kOut_>
struct SmallWgradConfig {
  static constexpr int kIn = kIn_, kOut = kOut_;
  static constexpr int kTeams = 4;  // that share a tile's pixels
  static constexpr int kThreads = 3 * kTeams * 32;
  // Of an SM, each with as many stages as there is room for.
  static constexpr int kBlocks = kIn + kOut < 64 ? 2 : 1;
  static constexpr int kStages = kBlocks == 2 ? 2 : 3;
  // Words of a pixel: four neighbours' eights of channels fill all banks.
  static constexpr int kInPixel = kIn + 8, kOutPixel = kOut + 8;
  static constexpr int kInWords = (kSmallInputs + 3) * kInPixel;
  static constexpr int kStageWords = kInWords + (kSmallPixels + 1) * kOutPixel;
  static constexpr int kSums = 9 * kIn * kOut;
  static constexpr int kWords =
      kStages * kStageWords > kSums ? kStages * kStageWords : kSums;
};

template <typename Config>
class SmallWgradTile {
 public:
  __device__ SmallWgradTile(const SmallWgradProblem& p, uint32_t tile) : p_(p) {
    row_ = TakeDigit(p.down, tile) * p.rows;
    image_ = static_cast<int>(tile);
    rows_ = min(p.rows, p.P - row_);
  }

  __device__ int pixels() const { return rows_ * p_.Q; }

  // By all threads; to be waited for.
  __device__ void Copy(float* to) const {
    constexpr int kInChunks = Config::kIn / 4, kOutChunks = Config::kOut / 4;
    const float* const x = p_.x + int64_t{image_} * p_.H * p_.W * Config::kIn;
    const int in_w = p_.Q + 2;
    const int count = (rows_ + 2) * in_w * kInChunks;
    for (int i = threadIdx.x; i < count; i += Config::kThreads) {
      const int chunk = i % kInChunks * 4, pixel = i / kInChunks;
      uint32_t rest = pixel;
      const int w =
          static_cast<int>(TakeDigit(p_.divide_in_w, rest)) - p_.pad_w;
      const int h = row_ + static_cast<int>(rest) - p_.pad_h;
      const bool inside =
          static_cast<unsigned>(h) < p_.H && static_cast<unsigned>(w) < p_.W;
      direct::CopyAsync16(
          reinterpret_cast<char*>(to + pixel * Config::kInPixel + chunk),
          inside ? x + (h * p_.W + w) * Config::kIn + chunk : p_.x, inside);
    }
    const float* const dy =
        p_.dy + (int64_t{image_} * p_.P + row_) * p_.Q * Config::kOut;
    to += Config::kInWords;
    for (int i = threadIdx.x; i < pixels() * kOutChunks;
         i += Config::kThreads) {
      const int chunk = i % kOutChunks * 4, pixel = i / kOutChunks;
      direct::CopyAsync16(
          reinterpret_cast<char*>(to + pixel * Config::kOutPixel + chunk),
          dy + i * 4, true);
    }
  }

 private:
  const SmallWgradProblem& p_;
  int image_, row_, rows_;
};

template <typename Config>
using SmallWgradSums = float[3][Config::kIn / 16][Config::kOut / 8][4];

// A warp's share of a tile: filter row `filter_row`, pixels of `team`.
template <typename Config>
__device__ __forceinline__ void AddSmallTile(const SmallWgradProblem& p,
                                             const float* in, int pixels,
                                             int filter_row, int team,
                                             SmallWgradSums<Config>& sums) {
  const float* const out = in + Config::kInWords;
  const int lane = threadIdx.x % 32;
  for (int step = team * 8; step < pixels; step += Config::kTeams * 8) {
    const float* x[2];
    const float* dy[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int pixel = step + lane % 4 + 4 * i;
      const bool is_there = pixel < pixels;
      const int row = p.divide_q.Divide(pixel);
      const int at = pixel + 2 * row + filter_row * (p.Q + 2);
      x[i] = in + (is_there ? at : kSmallInputs) * Config::kInPixel + lane / 4;
      dy[i] = out + (is_there ? pixel : kSmallPixels) * Config::kOutPixel +
              lane / 4;
    }
    float b[Config::kOut / 8][2];
#pragma unroll
    for (int n = 0; n < Config::kOut / 8; ++n) {
      b[n][0] = RoundTf32(dy[0][n * 8]);
      b[n][1] = RoundTf32(dy[1][n * 8]);
    }
#pragma unroll
    for (int s = 0; s < 3; ++s) {
#pragma unroll
      for (int m = 0; m < Config::kIn / 16; ++m) {
        const int at = s * Config::kInPixel + m * 16;
        const float a0 = RoundTf32(x[0][at]), a1 = RoundTf32(x[0][at + 8]);
        const float a2 = RoundTf32(x[1][at]), a3 = RoundTf32(x[1][at + 8]);
#pragma unroll
        for (int n = 0; n < Config::kOut / 8; ++n) {
          MultiplyTf32(sums[s][m][n], a0, a1, a2, a3, b[n][0], b[n][1]);
        }
      }
    }
  }
}

template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocks)
    SmallWgradKernel(const __grid_constant__ SmallWgradProblem p) {
  constexpr int kIn = Config::kIn, kOut = Config::kOut;
  constexpr int kStages = Config::kStages;
  extern __shared__ __align__(16) float small_wgrad_shared[];
  float* const stages = small_wgrad_shared;
  // What pixels read that a tile has not.
  for (int stage = 0; stage < kStages; ++stage) {
    float* const at = stages + stage * Config::kStageWords;
    for (int i = threadIdx.x; i < 3 * Config::kInPixel; i += Config::kThreads) {
      at[kSmallInputs * Config::kInPixel + i] = 0.0f;
    }
    for (int i = threadIdx.x; i < Config::kOutPixel; i += Config::kThreads) {
      at[Config::kInWords + kSmallPixels * Config::kOutPixel + i] = 0.0f;
    }
  }
  auto fetch = [&](int tile, int stage) {
    if (tile < p.tiles) {
      SmallWgradTile<Config>(p, tile).Copy(stages +
                                           stage * Config::kStageWords);
    }
    direct::CommitCopies();
  };
  const int step = gridDim.x;
  for (int i = 0; i < kStages - 1; ++i) fetch(blockIdx.x + i * step, i);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int filter_row = warp % 3, team = warp / 3;
  SmallWgradSums<Config> sums = {};
  int stage = 0;
  for (int tile = blockIdx.x; tile < p.tiles; tile += step) {
    direct::WaitForCopies<kStages - 2>();
    __syncthreads();
    fetch(tile + (kStages - 1) * step, stage == 0 ? kStages - 1 : stage - 1);
    AddSmallTile<Config>(p, stages + stage * Config::kStageWords,
                         SmallWgradTile<Config>(p, tile).pixels(), filter_row,
                         team, sums);
    stage = stage == kStages - 1 ? 0 : stage + 1;
  }
  direct::WaitForCopies<0>();

  // The teams' sums one after the other, in place of the tiles.
  for (int turn = 0; turn < Config::kTeams; ++turn) {
    __syncthreads();
    if (turn != team) continue;
#pragma unroll
    for (int s = 0; s < 3; ++s) {
#pragma unroll
      for (int m = 0; m < kIn / 16; ++m) {
#pragma unroll
        for (int n = 0; n < kOut / 8; ++n) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int row = (filter_row * 3 + s) * kIn + m * 16 + half * 8;
            float2* const at = reinterpret_cast<float2*>(
                stages + (row + lane / 4) * kOut + n * 8 + lane % 4 * 2);
            float2 sum = make_float2(sums[s][m][n][half * 2],
                                     sums[s][m][n][half * 2 + 1]);
            if (turn > 0) sum = make_float2(at->x + sum.x, at->y + sum.y);
            *at = sum;
          }
        }
      }
    }
  }
  __syncthreads();
  auto* const partial = reinterpret_cast<float4*>(
      p.partials + int64_t{blockIdx.x} * Config::kSums);
  for (int i = threadIdx.x; i < Config::kSums / 4; i += Config::kThreads) {
    partial[i] = reinterpret_cast<const float4*>(stages)[i];
  }
}

}  // namespace jax_convbatch::hopper
