// SPDX-License-Identifier: Apache-2.0
// The way in: copies of x's halos by one thread, of weights by another.
#pragma once

#include "cuda/sm90/arch/tensor_copies_5d.cuh"
#include "cuda/sm90/kernels/halo/halo_config.cuh"

namespace jax_convbatch::hopper {

// Halos of a block of channels and, of three axes, of one tap of depth.
template <typename Config>
__device__ __forceinline__ void CopyHalos(
    const typename Config::Problem& problem, uint32_t shared,
    HaloBarriers<Config>& barriers) {
  RingPosition<Config::kHalos> at;
  const int of_unit = int(problem.halo_cols) * problem.halo_rows * 128;
  ForHaloTiles<Config>(problem, [&](const HaloPlace& place, int) {
    const DepthTaps depth = DepthTapsOf(problem, place.pixels);
    for (int block = 0; block < problem.channel_blocks; ++block) {
      for (int t = depth.first; t < depth.end; ++t) {
        const uint32_t full = SharedAddress(&barriers.copied[at.stage]);
        const uint32_t to = shared + at.stage * Config::kHaloBytes;
        BarrierWait(SharedAddress(&barriers.used[at.stage]), at.round ^ 1);
        BarrierArriveExpect(
            full, problem.halo_pixels * 128 +
                      Config::Policy::FactorBytes(problem, block * 64));
        for (int m = 0; m < problem.halos; ++m) {
          const HaloBlock first = BlockOf(problem, place.pixels, m);
          const int image = first.slice / problem.depth;
          const int d =
              BaseSlice(problem, first.slice) + t * problem.dilation_d;
          LoadTile5(to + m * of_unit, problem.input, full,
                    block * Config::kBlock, first.col - problem.pad_w,
                    first.row - problem.pad_h, d, image);
          Config::Policy::CopyFactors(
              problem,
              shared + Config::kFactorOffset + at.stage * Config::kFactorBytes,
              full, m, image, block * 64);
        }
        at.Advance();
      }
    }
  });
}

template <typename Config>
__device__ __forceinline__ void CopyHaloWeights(
    const HaloProblem& problem, uint32_t shared,
    HaloBarriers<Config>& barriers) {
  RingPosition<Config::kStages> at;
  const int of_slice = problem.taps_h * problem.taps_w;
  ForHaloTiles<Config>(problem, [&](const HaloPlace& place, int) {
    const DepthTaps depth = DepthTapsOf(problem, place.pixels);
    for (int block = 0; block < problem.channel_blocks; ++block) {
      for (int tap = depth.first * of_slice; tap < depth.end * of_slice;
           ++tap) {
        const uint32_t full = SharedAddress(&barriers.weights.full[at.stage]);
        const uint32_t to =
            shared + Config::kWeightOffset + at.stage * Config::kWeightBytes;
        BarrierWait(SharedAddress(&barriers.weights.empty[at.stage]),
                    at.round ^ 1);
        BarrierArriveExpect(full, Config::kWeightBytes);
#pragma unroll
        for (int i = 0; i < Config::kWeightBoxes; ++i) {
          if constexpr (Config::kByRows) {
            LoadTile3(to + i * kBoxBytes, problem.weights, full,
                      place.channel + i * 64, block * 64, tap);
          } else {
            LoadTile3(to, problem.weights, full, block * Config::kBlock,
                      place.channel,
                      problem.first_tap + tap * problem.next_tap);
          }
        }
        at.Advance();
      }
    }
  });
}

}  // namespace jax_convbatch::hopper
