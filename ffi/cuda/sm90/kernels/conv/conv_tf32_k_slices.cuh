// SPDX-License-Identifier: Apache-2.0
// Long sums of few outputs of f32, in K slices: each is summed from zero, and
// they are added in order. Where tiles are few, a tile is formed once for each
// K slice, all at once, and a second kernel adds what these left in the
// workspace (split_k_sum.h); else a block adds the K slices of its tiles. Both
// ways give the same bits, and the geometry of a sample alone says in how many
// K slices it is summed.
#pragma once

#include <type_traits>

#include "cuda/common/divisor.h"
#include "cuda/sm90/epilogue/store_tf32.cuh"
#include "cuda/sm90/kernels/conv/conv_config.cuh"
#include "cuda/sm90/problem/conv_problem.h"
#include "cuda/sm90/problem/k_slices.h"

namespace jax_convbatch::hopper {

// What the kernel is told. Of partial sums `tiles` counts a tile once for each
// K slice, all tiles of a K slice one after another: they read the same filter.
struct KSliceProblem : ConvProblem<1> {
  int count;            // of K slices
  Divisor slice_tiles;  // of each
  ConvKSlices k_slices;
};

template <typename Config, int kSubs>
using Tf32ProblemOf = std::conditional_t<Config::kSum == Sum::kWhole,
                                         ConvProblem<kSubs>, KSliceProblem>;

template <typename Config, int kSubs>
inline constexpr Output kTf32OutputOf =
    Config::kSum == Sum::kPartial ? Output::kPartials
                                  : kTf32Output<Config, kSubs>;

// A tile whose sum is one K slice's.
template <typename Config>
struct Tf32Partial : Config {
  static constexpr Sum kSum = Sum::kPartial;
};

// Which K slice a tile of the launch is.
template <typename Config, typename Problem>
__device__ __forceinline__ int KSliceAt(const Problem& problem, int t) {
  if constexpr (Config::kSum == Sum::kPartial) return t / problem.slice_tiles;
  return 0;
}

// Its tile, of the K slice's stages.
template <typename Config, typename Problem>
__device__ __forceinline__ ConvTile Tf32TileAt(const Problem& problem, int t,
                                               int k_slice) {
  if constexpr (Config::kSum != Sum::kPartial) {
    return TileAt<Config>(problem, t);
  } else {
    ConvTile tile =
        TileAt<Config>(problem, t - k_slice * int(problem.slice_tiles));
    tile.iterations = problem.k_slices.k_slice[k_slice].count;
    return tile;
  }
}

}  // namespace jax_convbatch::hopper
