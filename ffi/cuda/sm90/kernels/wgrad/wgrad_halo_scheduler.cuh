// SPDX-License-Identifier: Apache-2.0
// Which steps of which tiles a block of wgrad_halo_kernel.cuh does, by what its
// launch is.
#pragma once

#include "cuda/sm90/kernels/wgrad/wgrad_partials.cuh"

namespace jax_convbatch::hopper {

// kShares: the blocks share all tiles. Where tiles are fewer than SMs, but more
// than half as many, there are two launches at a time: of kOwners, one block a
// tile, and of kHelpers, which do the last steps of all tiles in turn. A helper
// leaves partials; the owner waits for them when it has done its own steps, and
// adds them in its registers.
//
// kWhole: where tiles are more than blocks, and each does as many (HaloRounds
// in wgrad_tiling.h).
enum class HaloRole { kShares, kOwners, kHelpers, kWhole };

template <HaloRole kRole>
class HaloWalk;

template <>
class HaloWalk<HaloRole::kShares> : public PartialWalk<false> {
 public:
  __device__ HaloWalk(const HaloProblem& problem)
      : PartialWalk<false>(problem, blockIdx.x) {}
};

template <>
class HaloWalk<HaloRole::kOwners> {
 public:
  __device__ HaloWalk(const HaloProblem& problem) : steps_(problem.own_steps) {}

  __device__ bool Next(WgradPartial* partial) {
    *partial = {static_cast<int>(blockIdx.x), 0, steps_};
    const bool is_there = !is_done_;
    is_done_ = true;
    return is_there;
  }

 private:
  int steps_;
  bool is_done_ = false;
};

template <>
class HaloWalk<HaloRole::kWhole> {
 public:
  __device__ HaloWalk(const HaloProblem& problem) : problem_(problem) {}

  __device__ bool Next(WgradPartial* partial) {
    *partial = {tile_, 0, problem_.steps};
    const bool is_there = tile_ < problem_.whole_tiles;
    tile_ += gridDim.x;
    return is_there;
  }

 private:
  const HaloProblem& problem_;
  int tile_ = blockIdx.x;
};

// Where a helper's share of the line of all tiles' last steps begins. It is no
// shorter than a tile's, which so has one or two partials.
__device__ __forceinline__ int HelperBegin(const HaloProblem& problem,
                                           int helper) {
  const int helped = problem.steps - problem.own_steps;
  return static_cast<int>(int64_t{helper} * problem.tiles * helped /
                          problem.helpers);
}

// Where the second partial of a tile begins among its last steps, or 0.
__device__ __forceinline__ int SecondPartial(const HaloProblem& problem,
                                             int tile) {
  const int helped = problem.steps - problem.own_steps;
  int helper = tile * problem.helpers / problem.tiles;
  while (HelperBegin(problem, helper) <= tile * helped) ++helper;
  const int begin = HelperBegin(problem, helper) - tile * helped;
  return begin < helped ? begin : 0;
}

// Quads of a partial that a helper leaves, of its own thread.
template <typename Config>
__device__ __forceinline__ float4* HelperPartial(const HaloProblem& problem,
                                                 int tile, bool second,
                                                 int thread) {
  return reinterpret_cast<float4*>(problem.partials) +
         (2 * int64_t{tile} + second) * (Config::kQuads * Config::kConsumed) +
         thread;
}

template <>
class HaloWalk<HaloRole::kHelpers> {
 public:
  __device__ HaloWalk(const HaloProblem& problem)
      : problem_(problem),
        at_(HelperBegin(problem, blockIdx.x)),
        end_(HelperBegin(problem, blockIdx.x + 1)) {}

  __device__ bool Next(WgradPartial* partial) {
    const int own = problem_.own_steps, helped = problem_.steps - own;
    const int tile = at_ / helped;
    const int stop = min((tile + 1) * helped, end_);
    *partial = {tile, own + at_ - tile * helped, own + stop - tile * helped};
    const bool is_there = at_ < end_;
    at_ = stop;
    return is_there;
  }

 private:
  const HaloProblem& problem_;
  int at_, end_;
};

}  // namespace jax_convbatch::hopper
