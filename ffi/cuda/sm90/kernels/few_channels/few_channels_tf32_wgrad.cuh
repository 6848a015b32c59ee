// SPDX-License-Identifier: Apache-2.0
// wgrad of f32 with few input channels, multiplied as TF32: dw[element, k] =
// sum over pixels of x's columns, each element read from a row band of the
// image in shared memory (few_channels_tf32.cuh), times dy. The multiplier of
// wgmma would want one of them with the pixels next to each other; mma.sync
// takes both from registers.
//
// A block has 64 output channels and all its tiles' sums in registers: warps
// side by side have the elements, teams of them the pixels of a tile. Eight
// pixels of a row are multiplied at a time, the even ones as the first four:
// then what a warp reads of dy, as TMA lays it out, lies in different banks.
#pragma once

#include "cuda/sm90/arch/tensor_copies.cuh"
#include "cuda/sm90/kernels/few_channels/few_channels_tf32.cuh"
#include "cuda/sm90/mainloop/tf32_fragments.cuh"

namespace jax_convbatch::hopper {

struct FewChannelsTf32WgradProblem {
  FewChannelsTf32Problem band;
  CUtensorMap dy;  // boxes of 32 channels of a tile
  // [splits, elements, K]; or, where x and dy have changed places, [splits,
  // taps from the last, K, flipped].
  float* partials;
  int elements;                 // of a column
  int flipped;                  // channels of dy there, else 0
  int stage;                    // floats: dy of a tile, then its row band
  FastDivmod<uint32_t> eights;  // of pixels, in a tile's row
  FastDivmod<uint32_t> m_tiles, n_tiles;
  int splits;
};

// kBlocks: of 16 elements, of a warp. kSide: warps side by side.
template <int kBlocks_, int kSide_>
struct FewChannelsTf32WgradConfig {
  static constexpr int kBlocks = kBlocks_, kSide = kSide_;
  static constexpr int kTeams = kFewChannelsTf32Threads / 32 / kSide;
  static constexpr int kElements = 16 * kBlocks * kSide;
};

// dy of a tile, rounded on the way, from output channel `channel` on. By one
// thread.
__device__ __forceinline__ void LoadBandDy(const FewChannelsTf32WgradProblem& p,
                                           const FewChannelsTf32Tile& tile,
                                           int channel, float* to,
                                           uint32_t barrier) {
  const int box = p.band.rows * p.band.cols * kTf32Block;
  const int boxes = p.band.out_c - channel > kTf32Block ? 2 : 1;
  BarrierArriveExpect(barrier, boxes * box * 4);
  for (int i = 0; i < boxes; ++i) {
    LoadTile4(SharedAddress(to + i * box), p.dy, barrier,
              channel + i * kTf32Block, tile.col, tile.row, tile.image);
  }
}

// Rounds what this thread has copied.
__device__ __forceinline__ void RoundBand(const FewChannelsTf32Problem& p,
                                          float* band) {
#pragma unroll 4
  for (int i = threadIdx.x; i < p.band; i += kFewChannelsTf32Threads) {
    band[i] = RoundTf32(band[i]);
  }
}

template <typename Config>
using FewChannelsTf32WgradSums = float[Config::kBlocks][8][4];

// Where a lane finds dy of channels lane / 4 and 8 n more, of the first of
// eight pixels that it has, pixel lane % 4 * 2, and how far the second is.
struct FewChannelsDyLane {
  int at[4], next;

  __device__ FewChannelsDyLane() {
    const int lane = threadIdx.x % 32, pixel = lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      at[n] =
          pixel * kTf32Block + ((2 * n + lane / 16) ^ pixel) * 4 + lane / 4 % 4;
    }
    next = kTf32Block + (lane < 16 ? 4 : -4);
  }
};

// What a lane multiplies of eight pixels of a row: its first, `left` pixels
// from the image's end, and the one after.
struct BandEight {
  const float *x, *dy;
  int left;
};

// Loads dy of the 64 channels, boxes of 32 channels `box` apart.
__device__ __forceinline__ void LoadEight(const float* dy, int box,
                                          const FewChannelsDyLane& lane,
                                          float (&b)[8][2]) {
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    const float* const at = dy + n / 4 * box + lane.at[n % 4];
    b[n][0] = at[0];
    b[n][1] = at[lane.next];
  }
}

// Loads 16 elements of the columns. A pixel that is not there must not meet
// dy's zeros as a nan.
__device__ __forceinline__ void LoadElements(const BandEight& eight, int x_step,
                                             const int (&places)[2],
                                             float (&a)[4]) {
  const int first = threadIdx.x % 4 * 2;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool is_there = first + i / 2 < eight.left;
    a[i] = is_there ? eight.x[i / 2 * x_step + places[i % 2]] : 0.0f;
  }
}

// A team's share of a tile. What is multiplied next is loaded before.
template <typename Config>
__device__ __forceinline__ void AddFewChannelsTile(
    const FewChannelsTf32WgradProblem& p, const FewChannelsTf32Tile& tile,
    const float* band, const float* dy, int team,
    const int (&places)[Config::kBlocks][2],
    FewChannelsTf32WgradSums<Config>& sums) {
  const FewChannelsTf32Problem& s = p.band;
  const FewChannelsDyLane lane;
  const int x_step = s.stride_w * s.in_c, box = s.rows * s.cols * kTf32Block;
  const int eights = min(s.rows, s.out_h - tile.row) * p.eights.divisor();
  auto at = [&](int i) {
    uint32_t rest = i;
    const int col = static_cast<int>(TakeDigit(p.eights, rest)) * 8;
    const int row = static_cast<int>(rest);
    return BandEight{band + row * s.stride_h * s.strip_row +
                         (col + static_cast<int>(threadIdx.x) % 4 * 2) * x_step,
                     dy + i * 8 * kTf32Block, s.out_w - tile.col - col};
  };
  if (team >= eights) return;
  float a[2][4], b[2][8][2];
  BandEight now = at(team);
  LoadEight(now.dy, box, lane, b[0]);
  LoadElements(now, x_step, places[0], a[0]);
#pragma unroll 2
  for (int i = team; i < eights; i += Config::kTeams) {
    const bool more = i + Config::kTeams < eights;
    const BandEight next = more ? at(i + Config::kTeams) : now;
#pragma unroll
    for (int m = 0; m < Config::kBlocks; ++m) {
      if (m + 1 < Config::kBlocks) {
        LoadElements(now, x_step, places[m + 1], a[(m + 1) % 2]);
      }
      if (m == Config::kBlocks / 2) LoadEight(next.dy, box, lane, b[1]);
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        const float (&e)[4] = a[m % 2];
        MultiplyTf32(sums[m][n], e[0], e[1], e[2], e[3], b[0][n][0],
                     b[0][n][1]);
      }
    }
    now = next;
    LoadElements(now, x_step, places[0], a[0]);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      b[0][n][0] = b[1][n][0];
      b[0][n][1] = b[1][n][1];
    }
  }
}

// The teams' sums one after the other, in shared memory.
template <typename Config>
__device__ __forceinline__ void JoinTeams(
    float* to, int side, int team,
    const FewChannelsTf32WgradSums<Config>& sums) {
  const int lane = threadIdx.x % 32;
  for (int turn = 0; turn < Config::kTeams; ++turn) {
    __syncthreads();
    if (turn != team) continue;
#pragma unroll
    for (int m = 0; m < Config::kBlocks; ++m) {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row =
              (side * Config::kBlocks + m) * 16 + half * 8 + lane / 4;
          float2* const at =
              reinterpret_cast<float2*>(to + row * 64 + n * 8 + lane % 4 * 2);
          float2 sum =
              make_float2(sums[m][n][half * 2], sums[m][n][half * 2 + 1]);
          if (turn > 0) sum = make_float2(at->x + sum.x, at->y + sum.y);
          *at = sum;
        }
      }
    }
  }
  __syncthreads();
}

template <typename Config>
__global__ void __launch_bounds__(kFewChannelsTf32Threads, 1)
    FewChannelsTf32WgradKernel(
        const __grid_constant__ FewChannelsTf32WgradProblem p) {
  extern __shared__ __align__(1024) float few_channels_tf32_wgrad_shared[];
  __shared__ uint64_t full[2];
  const FewChannelsTf32Problem& s = p.band;
  uint32_t split = blockIdx.x;
  const int element =
      static_cast<int>(TakeDigit(p.m_tiles, split)) * Config::kElements;
  const int channel = static_cast<int>(TakeDigit(p.n_tiles, split)) * 64;
  const int strip_offset = s.rows * s.cols * 64;
  if (threadIdx.x == 0) {
    BarrierInit(SharedAddress(&full[0]), 1);
    BarrierInit(SharedAddress(&full[1]), 1);
    FenceBarrierInit();
  }
  auto fetch = [&](int index, int stage) {
    if (index < s.tiles) {
      const FewChannelsTf32Tile tile(s, index);
      if (threadIdx.x == 0) {
        LoadBandDy(p, tile, channel,
                   few_channels_tf32_wgrad_shared + stage * p.stage,
                   SharedAddress(&full[stage]));
      }
      tile.Copy(
          s, few_channels_tf32_wgrad_shared + stage * p.stage + strip_offset);
    }
    CopyCommit();
  };
  fetch(split, 0);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int side = warp % Config::kSide, team = warp / Config::kSide;
  int places[Config::kBlocks][2];
#pragma unroll
  for (int m = 0; m < Config::kBlocks; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at =
          element + (side * Config::kBlocks + m) * 16 + half * 8 + lane / 4;
      const int tap = at / s.in_c, c = at - tap * s.in_c;
      const int row = tap / s.taps_w, col = tap - row * s.taps_w;
      // Past the last is what is not written.
      places[m][half] = at < p.elements ? row * s.dilation_h * s.strip_row +
                                              col * s.dilation_w * s.in_c + c
                                        : 0;
    }
  }
  FewChannelsTf32WgradSums<Config> sums = {};
  int stage = 0, round = 0;
  for (int index = split; index < s.tiles; index += p.splits) {
    float* const dy = few_channels_tf32_wgrad_shared + stage * p.stage;
    float* const band = dy + strip_offset;
    CopyWait<0>();
    RoundBand(s, band);
    __syncthreads();  // the row band is there, and the other tile is read
    fetch(index + p.splits, 1 - stage);
    BarrierWait(SharedAddress(&full[stage]), round);
    AddFewChannelsTile<Config>(p, FewChannelsTf32Tile(s, index), band, dy, team,
                               places, sums);
    round ^= stage;
    stage = 1 - stage;
  }
  JoinTeams<Config>(few_channels_tf32_wgrad_shared, side, team, sums);
  float* const partial = p.partials + int64_t{split} * p.elements * s.out_c;
  const int k = channel + threadIdx.x % 16 * 4;
  for (int i = threadIdx.x / 16; i < Config::kElements;
       i += kFewChannelsTf32Threads / 16) {
    if (element + i >= p.elements || k >= s.out_c) continue;
    const float4 v = reinterpret_cast<const float4*>(
        few_channels_tf32_wgrad_shared)[i * 16 + threadIdx.x % 16];
    if (p.flipped == 0) {
      *reinterpret_cast<float4*>(partial + int64_t{element + i} * s.out_c + k) =
          v;
      continue;
    }
    const int taps = p.elements / p.flipped;
    const int tap = (element + i) / p.flipped;
    float* const to = partial +
                      (int64_t{taps - 1 - tap} * s.out_c + k) * p.flipped +
                      (element + i - tap * p.flipped);
    to[0] = v.x;
    to[p.flipped] = v.y;
    to[2 * p.flipped] = v.z;
    to[3 * p.flipped] = v.w;
  }
}

}  // namespace jax_convbatch::hopper
