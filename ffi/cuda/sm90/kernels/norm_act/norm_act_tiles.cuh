// SPDX-License-Identifier: Apache-2.0
// The policies of halo_kernel.cuh for y = conv(act(scale x + shift), w) + bias
// + residual with sums of y, and for its gradient.
#pragma once

#include "cuda/sm90/arch/bulk_copy.cuh"
#include "cuda/sm90/kernels/norm_act/activate_halos.cuh"
#include "cuda/sm90/kernels/norm_act/norm_act.h"
#include "cuda/sm90/kernels/norm_act/norm_act_store.cuh"

namespace jax_convbatch::hopper {

// What both share.
struct SummedTiles {
  using Problem = NormActProblem;
  static constexpr int kMaxHaloPixels = kMaxNormActHaloPixels;
  // Sums and squares of the pixels of a warp, by block of 64.
  static constexpr int kSums = 2 * (kWarpgroup / 32) * 2;

  template <typename Config>
  static __device__ __forceinline__ void StorePartials(const Problem& problem,
                                                       const HaloPlace& place,
                                                       const float* sums) {
    StoreTilePartials<Config::kN>(problem, place, sums);
  }
};

// Warps of their own read, activate and write a halo back, once for nine
// products of a 3x3 filter.
struct NormActTiles : SummedTiles, OneOutput {
  static constexpr int kActivators = hopper::kActivators;
  // scale and shift of 64 channels, for two blocks of 64 pixels.
  static constexpr int kFactorBytes = 2 * 2 * 64 * 4;

  // Of the channels from `channel` on, of which x may not have 64.
  static __device__ int FactorBytes(const Problem& problem, int channel) {
    return problem.halos * 2 * 4 * min(64, problem.c - channel);
  }
  static __device__ void CopyFactors(const Problem& problem, uint32_t factors,
                                     uint32_t full, int m, int image,
                                     int channel) {
    const int bytes = 4 * min(64, problem.c - channel);
    const int64_t from =
        int64_t{min(image, problem.n - 1)} * problem.factor_step + channel;
    LoadBytes(factors + m * 512, problem.scale + from, full, bytes);
    LoadBytes(factors + m * 512 + 256, problem.shift + from, full, bytes);
  }

  template <typename Config>
  static __device__ __forceinline__ void Activate(
      const Problem& problem, int warp, uint32_t shared,
      HaloBarriers<Config>& barriers) {
    ActivateHalos<Config>(problem, warp, shared, barriers);
  }

  template <typename Config>
  static __device__ __forceinline__ void Write(
      const Problem& problem, const HaloPlace& place,
      const float (&acc)[2][Config::kN / 2], uint32_t buffer, float* sums) {
    WriteNormActTile<typename Config::T, Config::kN>(problem, place, acc,
                                                     buffer, sums);
  }
};

// Of dgrad, whose input is dy as it is. Its sums are multiplied by the
// derivative of the activation, and it stores the activated x too.
struct NormActGradientTiles : SummedTiles, PlainHalos {
  static constexpr int kOutputs = 2;

  template <typename Config>
  static __device__ __forceinline__ void Write(
      const Problem& problem, const HaloPlace& place,
      const float (&acc)[2][Config::kN / 2], uint32_t buffer, float* sums) {
    WriteGradientTile<typename Config::T, Config::kN>(
        problem, place, acc, buffer, buffer + Config::kTileBytes, sums);
  }

  // By one thread.
  template <typename Config>
  static __device__ __forceinline__ void Store(const Problem& problem,
                                               const HaloPlace& place,
                                               uint32_t buffer) {
    StoreHaloTile<Config>(problem, place, problem.activated, buffer);
    StoreHaloTile<Config>(problem, place, problem.output,
                          buffer + Config::kTileBytes);
  }
};

}  // namespace jax_convbatch::hopper
