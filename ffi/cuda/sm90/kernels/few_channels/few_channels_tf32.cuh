// SPDX-License-Identifier: Apache-2.0
// fprop and dgrad of f32 with few input channels, multiplied as TF32: all taps'
// channels together are a sum of at most 64. A tile's inputs lie in shared
// memory as they lie in the image, with zeros around; columns are never laid
// out: lanes load what they multiply from the row band, each element of a sum a
// fixed distance from its pixel's first. A warp keeps the filter of its output
// channels in registers, for all its tiles.
//
// A product of 16 rows is 16 pixels of an image's row. The columns are permuted
// so that a lane's sums are four neighbouring channels, stored at once.
//
// A sum's order is that of the taps and channels: it does not depend on the
// tile.
#pragma once

#include "cuda/sm90/arch/mma_tf32.cuh"
#include "cuda/sm90/arch/round_tf32.cuh"
#include "cuda/sm90/copy/cp_async.cuh"
#include "cuda/sm90/epilogue/lane_epilogue.cuh"
#include "cuda/sm90/kernels/few_channels/few_channels_tf32_problem.h"
#include "cuda/sm90/kernels/few_channels/few_channels_tf32_tiling.h"

namespace jax_convbatch::hopper {

// Sums of up to 8 kSteps elements; kOut output channels of a block. kLayer:
// with an epilogue.
template <int kSteps_, bool kLayer_,
          int kOut_ = FewChannelsTf32Channels(kSteps_)>
struct FewChannelsTf32Config {
  static constexpr int kSteps = kSteps_, kOut = kOut_;
  static constexpr bool kLayer = kLayer_;
  static constexpr int kColumns = kOut / 8;
};

struct FewChannelsTf32Tile {
  int image, row, col;  // of its first output

  __device__ __forceinline__
  FewChannelsTf32Tile(const FewChannelsTf32Problem& p, uint32_t tile) {
    col = static_cast<int>(TakeDigit(p.across, tile)) * p.cols;
    row = static_cast<int>(TakeDigit(p.down, tile)) * p.rows;
    image = static_cast<int>(tile);
  }

  // By all threads; to be waited for.
  __device__ __forceinline__ void Copy(const FewChannelsTf32Problem& p,
                                       float* to) const {
    const int row_floats = p.in_w * p.in_c;
    const float* const from = p.in + int64_t{image} * p.in_h * row_floats;
    const int first_h = row * p.stride_h - p.pad_h;
    const int first_at = (col * p.stride_w - p.pad_w) * p.in_c;
#pragma unroll 2
    for (int i = threadIdx.x; i < p.band; i += kFewChannelsTf32Threads) {
      uint32_t rest = i;
      const int at =
          first_at + static_cast<int>(TakeDigit(p.divide_strip_row, rest));
      const int h = first_h + static_cast<int>(rest);
      const bool inside = static_cast<unsigned>(h) < p.in_h &&
                          static_cast<unsigned>(at) < row_floats;
      CopyAsync<4>(SharedAddress(to + i),
                   inside ? from + int64_t{h} * row_floats + at : p.in,
                   inside ? 4 : 0);
    }
  }
};

// What a warp keeps: for its lanes' elements of a sum where they lie in a row
// band, from their pixel's first on, or -1 past the last; and the filter.
template <typename Config>
struct FewChannelsTf32Filter {
  int places[Config::kSteps][2];
  float w[Config::kSteps][Config::kColumns][2];

  // Of output channels from `first` on.
  __device__ __forceinline__ void Load(const FewChannelsTf32Problem& p,
                                       int first) {
    const int lane = threadIdx.x % 32;
    const int taps = p.taps_h * p.taps_w;
#pragma unroll
    for (int step = 0; step < Config::kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int element = step * 8 + lane % 4 + i * 4;
        const int tap = element / p.in_c, c = element % p.in_c;
        const int r = tap / p.taps_w, s = tap % p.taps_w;
        const bool is_there = tap < taps;
        places[step][i] = is_there ? r * p.dilation_h * p.strip_row +
                                         s * p.dilation_w * p.in_c + c
                                   : -1;
#pragma unroll
        for (int n = 0; n < Config::kColumns; ++n) {
          const int g = lane / 4;
          const int k = first + n / 2 * 16 + g / 2 * 4 + n % 2 * 2 + g % 2;
          const int at = p.flipped
                             ? ((taps - 1 - tap) * p.out_c + k) * p.in_c + c
                             : element * p.out_c + k;
          w[step][n][i] =
              is_there && k < p.out_c ? RoundTf32(__ldg(p.w + at)) : 0.0f;
        }
      }
    }
  }
};

template <typename Config>
__device__ __forceinline__ void ComputeBand(
    const FewChannelsTf32Problem& p, const Epilogue& e,
    const FewChannelsTf32Tile& tile, const float* band, int channel,
    const FewChannelsTf32Filter<Config>& filter) {
  const int lane = threadIdx.x % 32;
  const int across = p.cols / 16, products = p.rows * across;
  for (int i = threadIdx.x / 32; i < products;
       i += kFewChannelsTf32Threads / 32) {
    const int row = i / across, col = i % across * 16 + lane / 4;
    const float* const low =
        band + row * p.stride_h * p.strip_row + col * p.stride_w * p.in_c;
    const float* const high = low + 8 * p.stride_w * p.in_c;
    float sums[Config::kColumns][4] = {};
#pragma unroll
    for (int step = 0; step < Config::kSteps; ++step) {
      float a[4];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int place = filter.places[step][j];
        a[2 * j] = place >= 0 ? RoundTf32(low[place]) : 0.0f;
        a[2 * j + 1] = place >= 0 ? RoundTf32(high[place]) : 0.0f;
      }
#pragma unroll
      for (int n = 0; n < Config::kColumns; ++n) {
        MultiplyTf32(sums[n], a[0], a[1], a[2], a[3], filter.w[step][n][0],
                     filter.w[step][n][1]);
      }
    }
    const int out_row = tile.row + row;
    const int64_t line =
        (int64_t{tile.image} * p.out_h + out_row) * p.out_w * p.out_c;
#pragma unroll
    for (int n = 0; n < Config::kColumns; n += 2) {
      const int k = channel + n * 8 + lane % 4 * 4;
      const bool has = k < p.out_c && out_row < p.out_h;
      const LaneEpilogue<float> epilogue(e, k, has && Config::kLayer);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int out_col = tile.col + col + 8 * half;
        const bool is_there = has && out_col < p.out_w;
        const int64_t at = line + int64_t{out_col} * p.out_c + k;
        float v[4] = {sums[n][2 * half], sums[n][2 * half + 1],
                      sums[n + 1][2 * half], sums[n + 1][2 * half + 1]};
        uint4 y;
        if constexpr (Config::kLayer) {
          y = epilogue.Apply(is_there, at, v);
        } else {
          y = PackLane<float>(v);
        }
        if (is_there) *reinterpret_cast<uint4*>(p.out + at) = y;
      }
    }
  }
}

template <typename Config>
__global__ void __launch_bounds__(kFewChannelsTf32Threads,
                                  kFewChannelsTf32Resident)
    FewChannelsTf32Kernel(const __grid_constant__ FewChannelsTf32Problem p,
                          const __grid_constant__ Epilogue e) {
  extern __shared__ __align__(16) float few_channels_tf32_shared[];
  uint32_t first = blockIdx.x;
  const int channel =
      static_cast<int>(TakeDigit(p.shares, first)) * Config::kOut;
  const int step = gridDim.x / p.shares.divisor();
  auto fetch = [&](int tile, float* to) {
    if (tile < p.tiles) FewChannelsTf32Tile(p, tile).Copy(p, to);
    CopyCommit();
  };
  fetch(first, few_channels_tf32_shared);
  FewChannelsTf32Filter<Config> filter;
  filter.Load(p, channel);
  int stage = 0;
  for (int tile = first; tile < p.tiles; tile += step) {
    CopyWait<0>();
    __syncthreads();  // the row band is there, and the other one is read
    fetch(tile + step, few_channels_tf32_shared + (1 - stage) * p.band);
    ComputeBand<Config>(p, e, FewChannelsTf32Tile(p, tile),
                        few_channels_tf32_shared + stage * p.band, channel,
                        filter);
    stage = 1 - stage;
  }
}

}  // namespace jax_convbatch::hopper
