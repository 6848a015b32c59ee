// SPDX-License-Identifier: Apache-2.0
// The copies of fprop and dgrad of f32: what a stage holds, in the order of the
// sum.
#pragma once

#include <algorithm>

#include "cuda/sm90/copy/group_copies.cuh"
#include "cuda/sm90/copy/pipeline.cuh"
#include "cuda/sm90/kernels/conv/conv_config.cuh"
#include "cuda/sm90/kernels/conv/conv_copies.cuh"
#include "cuda/sm90/mainloop/tf32_fragments.cuh"
#include "cuda/sm90/problem/conv_problem.h"

namespace jax_convbatch::hopper {

// The first output channel of a tile, among those that problem.channels counts.
template <typename Config>
__device__ __forceinline__ int StoredChannel(const ConvTile& tile) {
  return Config::kWidth == kAnyGroups ? tile.in_group : tile.channel;
}

// Where the next stage of a tile comes from, as StageWalk. Every configuration
// adds in this order.
template <typename Config, bool kVolumes_>
struct Tf32Walk {
  static constexpr bool kVolumes = kVolumes_;
  PixelPlace at[Config::kInputBoxes];
  DepthTaps depth;
  int r = 0, s = 0, t, block = 0;

  __device__ __forceinline__ Tf32Walk(const ConvTile& tile)
      : depth(tile.depth), t(kVolumes ? depth.first : 0) {
    const ConvSubproblem& sub = *tile.sub;
#pragma unroll
    for (int b = 0; b < Config::kInputBoxes; ++b) {
      int pixel = tile.pixel + b * Config::kBoxPixels;
      // A box of groups must begin inside the tensor (it is an illegal
      // instruction otherwise); of one that does not nothing is stored.
      if constexpr (Config::kWidth == kAnyGroups) {
        pixel = min(pixel, sub.pixels - 1);
      }
      at[b] = InputPixel<kVolumes>(sub, pixel);
    }
  }

  __device__ __forceinline__ void Advance(const ConvSubproblem& sub) {
    AdvanceTaps<kVolumes, Config::kTaps>(sub, *this);
  }
};

template <typename Config, int kSubs, typename Walk>
__device__ __forceinline__ void CopyTf32Input(const ConvProblem<kSubs>& problem,
                                              const ConvTile& tile,
                                              const Walk& walk, uint32_t input,
                                              uint32_t full) {
  const ConvSubproblem& sub = *tile.sub;
  const int c = walk.block * kTf32Block;
  const TapOffset tap = OffsetOfTap(sub, walk);
  BarrierArriveExpect(full, Config::kInputBytes);
#pragma unroll
  for (int b = 0; b < Config::kInputBoxes; ++b) {
    const uint32_t to = input + b * Config::kBoxPixels * 128;
    if constexpr (Config::kWidth == kAnyGroups) {
      const PixelPlace& at = walk.at[b];
      LoadGroupIm2col(to, sub.input, full, c, at.w, at.h, at.image, tile.group,
                      tap.w, tap.h);
    } else {
      LoadTap(Walk::kVolumes, to, sub.input, full, tile.input_channel + c,
              walk.at[b], tap);
    }
  }
}

// `boxes`: of 32 output channels. Those past the last channel are left out, and
// what they would have given is not written.
template <typename Config, int kSubs>
__device__ __forceinline__ int FilterBoxes(const ConvProblem<kSubs>& problem,
                                           const ConvTile& tile) {
  return (min(Config::kN, problem.channels - StoredChannel<Config>(tile)) +
          kTf32Block - 1) /
         kTf32Block;
}

template <typename Config, int kSubs, typename Walk>
__device__ __forceinline__ void CopyTf32Weights(
    const ConvProblem<kSubs>& problem, const ConvTile& tile, const Walk& walk,
    int boxes, uint32_t weights, uint32_t full) {
  constexpr bool kInGroups = Config::kWidth == kAnyGroups;
  constexpr bool kRows = Config::kWeights == Contiguous::kRows;
  const ConvSubproblem& sub = *tile.sub;
  const int c = walk.block * kTf32Block;
  BarrierArriveExpect(full, Config::kTaps * (kRows ? boxes * kTf32BoxBytes
                                                   : Config::kTapBytes));
#pragma unroll
  for (int tap = 0; tap < Config::kTaps; ++tap) {
    const uint32_t to_tap = weights + tap * Config::kTapBytes;
    const int filter_tap =
        FilterTap(problem, sub, walk) + tap * sub.taps_w.tap_step;
    if constexpr (kRows) {
#pragma unroll
      for (int n = 0; n < Config::kN / kTf32Block; ++n) {
        if (n >= boxes) break;
        const uint32_t to = to_tap + n * kTf32BoxBytes;
        const int k = StoredChannel<Config>(tile) + n * kTf32Block;
        if constexpr (kInGroups) {
          LoadTile4(to, problem.weights, full, k, tile.group, c, filter_tap);
        } else {
          LoadTile3(to, problem.weights, full, k, c, filter_tap);
        }
      }
    } else if constexpr (kInGroups) {
      LoadTile4(to_tap, problem.weights, full, c, tile.group, tile.in_group,
                filter_tap);
    } else {
      LoadTile3(to_tap, problem.weights, full, tile.input_channel + c,
                tile.in_group, filter_tap);
    }
  }
}

}  // namespace jax_convbatch::hopper
