// SPDX-License-Identifier: Apache-2.0
// What a block of norm_act_kernel.cuh is made of: its shared memory, its
// barriers, and the tiles that it works on.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_NORM_ACT_NORM_ACT_CONFIG_CUH_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_NORM_ACT_NORM_ACT_CONFIG_CUH_

#include "cuda/sm90/copy/pipeline.cuh"
#include "cuda/sm90/kernels/norm_act/norm_act_problem.h"

namespace jax_convbatch::hopper {

// Two warpgroups multiply. Of the warps of two others some activate and one
// copies. Their registers are together what a block is launched with.
inline constexpr int kNormActThreads = 4 * kWarpgroup;
inline constexpr int kActivators = 6;
inline constexpr int kActivatorRegisters = 56, kNormActRegisters = 200;
static_assert(kActivatorRegisters + kNormActRegisters == 2 * 128);

// Halos of x and stages of weights: what fits in shared memory. kGradient: of
// dgrad, whose input is dy as it is, whose sums are multiplied by the
// derivative of the activation, and which stores the activated x too.
template <typename T_, int kN_, int kHalos_, int kStages_,
          bool kGradient_ = false>
struct NormActConfig {
  using T = T_;
  static constexpr int kN = kN_, kHalos = kHalos_, kStages = kStages_;
  static constexpr bool kGradient = kGradient_;
  // The filter's output channels are contiguous, of which dgrad sums.
  static constexpr Contiguous kWeights =
      kGradient ? Contiguous::kReduction : Contiguous::kRows;
  static constexpr int kHaloBytes = kMaxHaloPixels * 128;
  static constexpr int kWeightBoxes = kGradient ? 1 : (kN + 63) / 64;
  static constexpr int kWeightBytes =
      kGradient ? kN * 128 : kWeightBoxes * kBoxBytes;
  static constexpr int kTileBytes = kNormActTilePixels * kN * 2;
  static constexpr int kOutputBytes = (kGradient ? 2 : 1) * kTileBytes;
  // Sums and squares of the pixels of a warp, by block of 64.
  static constexpr int kSumBytes = 2 * (kWarpgroup / 32) * 2 * kN * 4;

  // scale and shift of 64 channels, of two images at the most.
  static constexpr int kFactorBytes = kGradient ? 0 : 2 * 2 * 64 * 4;

  static constexpr int kWeightOffset = kHalos * kHaloBytes;
  static constexpr int kOutputOffset = kWeightOffset + kStages * kWeightBytes;
  static constexpr int kSumOffset = kOutputOffset + kOutputBytes;
  static constexpr int kFactorOffset = kSumOffset + kSumBytes;
  static constexpr int kBarrierOffset = kFactorOffset + kHalos * kFactorBytes;
};

template <typename Config>
struct NormActBarriers {
  RingBarriers<Config::kStages> weights;
  uint64_t copied[Config::kHalos];     // a halo is there
  uint64_t activated[Config::kHalos];  // and activated
  uint64_t used[Config::kHalos];       // and multiplied
  uint64_t turn[kConsumers];  // the other warpgroup's tile is under way
  uint64_t residual;          // it is in the buffer of the output
  uint64_t stored;            // from which a tile has been stored

  __device__ void Init() {  // by one thread
    weights.Init(1, kWarpgroup / 32);
    for (int i = 0; i < Config::kHalos; ++i) {
      BarrierInit(SharedAddress(&copied[i]), 1);
      BarrierInit(SharedAddress(&activated[i]), kActivators);
      BarrierInit(SharedAddress(&used[i]), kWarpgroup / 32);
    }
    for (uint64_t& barrier : turn) {
      BarrierInit(SharedAddress(&barrier), kWarpgroup / 32);
    }
    BarrierInit(SharedAddress(&residual), 1);
    BarrierInit(SharedAddress(&stored), 1);
    FenceBarrierInit();
  }
};

template <typename Config>
inline constexpr int kNormActShared =
    Config::kBarrierOffset + int{sizeof(NormActBarriers<Config>)};

// The first pixel and channel of a tile, and which of its image's it is.
struct NormActPlace {
  int image, row, col, channel, chunk;
};

template <typename Config>
__device__ __forceinline__ NormActPlace PlaceOf(const NormActProblem& problem,
                                                int t) {
  const int pixels = t / problem.n_tiles;
  const int rows = pixels / problem.tiles_w;
  const int images = rows / problem.tiles_h;
  NormActPlace place;
  place.image = images * problem.tile_images;
  place.row = (rows - images * problem.tiles_h) * problem.tile_rows;
  place.col = (pixels - rows * problem.tiles_w) * problem.tile_cols;
  place.channel = (t - pixels * problem.n_tiles) * Config::kN;
  place.chunk = pixels - images * problem.tiles_h * problem.tiles_w;
  return place;
}

// Calls visit(place, turn) for the tiles of this block, in order.
template <typename Config, typename Visit>
__device__ __forceinline__ void ForNormActTiles(const NormActProblem& problem,
                                                Visit visit) {
  int turn = 0;
  for (int t = blockIdx.x; t < problem.tiles; t += gridDim.x) {
    visit(PlaceOf<Config>(problem, t), turn++);
  }
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_NORM_ACT_NORM_ACT_CONFIG_CUH_
