// SPDX-License-Identifier: Apache-2.0
// What the kernel of single_wave_backward.cuh is told, what its blocks have,
// and how they copy it.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_FUSED_BACKWARD_SINGLE_WAVE_BACKWARD_COPIES_CUH_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_FUSED_BACKWARD_SINGLE_WAVE_BACKWARD_COPIES_CUH_

#include "cuda/sm90/copy/pipeline.cuh"
#include "cuda/sm90/copy/strided_pixels.cuh"
#include "cuda/sm90/kernels/fused_backward/single_wave_backward.h"

namespace jax_convbatch::hopper {

struct SingleWaveBackwardProblem {
  CUtensorMap dy, x, w, bitmask, dw, dz;  // dw: boxes of what a block adds
  // Of the pixels that the filter meets, then of those that get zeros.
  CUtensorMap dx[kBackwardSubproblems];
  const uint8_t* bitmask_of_dx;  // by ordinary loads
  void* db;
  int K, pixels;
  int dx_begin, dw_begin;  // first blocks of either
  int dx_tiles;            // whose blocks fill whole clusters
  int dx_columns;          // tiles of the same pixels
  int dw_rows;             // tiles of the same input channels
  int steps, splits;       // of 64 pixels; blocks of a tile of dw
  bool stores_dz;
  StridedPixels walk;
};

// kGroups: warpgroups that multiply. kDxN: input channels of a tile of dx.
// kBlocks: of an SM. kStrided: pixels of dx lie apart, with zeros between.
template <typename T_, int kGroups_, int kDxN_, int kStages_, int kBlocks_,
          bool kStrided_>
struct SingleWaveBackwardConfig {
  using T = T_;
  static constexpr int kGroups = kGroups_, kDxN = kDxN_,
                       kDwN = kSingleWaveBackwardColumns;
  static constexpr int kStages = kStages_, kBlocks = kBlocks_;
  static constexpr bool kStrided = kStrided_;
  static constexpr int kConsumerThreads = kGroups * kWarpgroup;
  static constexpr int kThreads = kConsumerThreads + 32;
  // A stage: dy, the other operand, and the bitmask of 128 output channels.
  static constexpr int kBitmaskBytes = 64 * 16;  // of 64 pixels
  static constexpr int kOtherOffset = kGroups * kBoxBytes;
  static constexpr int kBitmaskOffset = kOtherOffset + kDwN * 128;
  static constexpr int kStageBytes = kBitmaskOffset + kBitmaskBytes;
  static constexpr int kZeroOffset = kStages * kStageBytes;
  // What the blocks of a tile send each other.
  static constexpr int kSumOffset = kZeroOffset + (kStrided ? kBoxBytes : 0);
  static constexpr int kSumBytes = kGroups * kDwN * 64 * 4;
  static constexpr int kSharedBytes = kSumOffset + kSumBytes + 1024;
  // Results are written over the stages.
  static constexpr int kResultBytes = kDwN * 128;  // of a warpgroup
  static_assert(kDxN <= kDwN &&
                kStages * kStageBytes >= kGroups * kResultBytes);
};

template <typename Config>
struct SingleWaveBackwardShared {
  RingBarriers<Config::kStages> ring;
  uint64_t sums;
  alignas(16) float db[kSingleWaveBackwardMostSplits][Config::kGroups * 64];
};

// A block's tile of dx.
template <typename Config>
struct SingleWaveBackwardTile {
  int pixel, channel;

  __device__ explicit SingleWaveBackwardTile(
      const SingleWaveBackwardProblem& problem) {
    const int tile = blockIdx.x - problem.dx_begin;
    const int row = tile / problem.dx_columns;
    pixel = row * (Config::kGroups * 64);
    channel = (tile - row * problem.dx_columns) * Config::kDxN;
  }
};

// A block's tile of dw and its steps: every problem.splits-th.
template <typename Config>
struct SingleWaveBackwardShare {
  int k, c, split, steps;

  __device__ explicit SingleWaveBackwardShare(
      const SingleWaveBackwardProblem& problem) {
    const int block = blockIdx.x - problem.dw_begin;
    const int tile = block / problem.splits;
    split = block - tile * problem.splits;
    const int column = tile / problem.dw_rows;
    k = (tile - column * problem.dw_rows) * (Config::kGroups * 64);
    c = column * Config::kDwN;
    steps = (problem.steps - split + problem.splits - 1) / problem.splits;
  }
  __device__ int Pixel(const SingleWaveBackwardProblem& problem,
                       int step) const {
    return (split + step * problem.splits) * 64;
  }
  __device__ bool AddsDb() const { return c == 0; }
};

// The zeros around a tile's pixels, of a stride: in boxes, first to last.
template <typename Config>
__device__ __forceinline__ void StoreSingleWaveBackwardZeros(
    const SingleWaveBackwardProblem& problem,
    const SingleWaveBackwardTile<Config>& tile, uint32_t shared, int first,
    int last) {
  constexpr int kBoxes = Config::kDxN / 64;  // of 64 pixels
  for (int box = first; box < last; ++box) {
    const int sub = 1 + box / (Config::kGroups * kBoxes);
    const int pixel = tile.pixel + box / kBoxes % Config::kGroups * 64;
    if (pixel >= problem.pixels) continue;
    const StridedPixel to(problem.walk, pixel);
    StoreIm2col(problem.dx[sub], shared + Config::kZeroOffset,
                tile.channel + box % kBoxes * 64,
                to.w + problem.walk.sub_w[sub], to.h + problem.walk.sub_h[sub],
                to.image);
  }
}

// What a stage of a tile of dx holds. By one thread, as all that copies.
template <typename Config>
__device__ __forceinline__ void LoadDxStage(
    const SingleWaveBackwardProblem& problem,
    const SingleWaveBackwardTile<Config>& tile, uint32_t stage, uint32_t full,
    int step) {
  BarrierArriveExpect(full, Config::kGroups * kBoxBytes + Config::kDxN * 128);
#pragma unroll
  for (int i = 0; i < Config::kGroups; ++i) {
    LoadTile2(stage + i * kBoxBytes, problem.dy, full, step * 64,
              tile.pixel + i * 64);
  }
  LoadTile2(stage + Config::kOtherOffset, problem.w, full, step * 64,
            tile.channel);
}

template <typename Config>
__device__ __forceinline__ void LoadDwStage(
    const SingleWaveBackwardProblem& problem,
    const SingleWaveBackwardShare<Config>& share, uint32_t stage, uint32_t full,
    int step) {
  const int pixel = share.Pixel(problem, step);
  BarrierArriveExpect(full, Config::kGroups * kBoxBytes + Config::kDwN * 128 +
                                Config::kBitmaskBytes);
  LoadTile2(stage + Config::kBitmaskOffset, problem.bitmask, full,
            share.k / 128 * 8, pixel);
#pragma unroll
  for (int i = 0; i < Config::kGroups; ++i) {
    LoadTile2(stage + i * kBoxBytes, problem.dy, full, share.k + i * 64, pixel);
  }
  const uint32_t x = stage + Config::kOtherOffset;
  if constexpr (Config::kStrided) {
    const StridedPixel from(problem.walk, pixel);
#pragma unroll
    for (int c = 0; c < Config::kDwN; c += 64) {
      LoadIm2col(x + c * 128, problem.x, full, share.c + c, from.w, from.h,
                 from.image, 0, 0);
    }
  } else {
#pragma unroll
    for (int c = 0; c < Config::kDwN; c += 64) {
      LoadTile2(x + c * 128, problem.x, full, share.c + c, pixel);
    }
  }
}

// Stages that nobody has used yet, before the block's other threads see them.
template <typename Config>
__device__ __forceinline__ void LoadFirst(
    const SingleWaveBackwardProblem& problem, uint32_t shared,
    RingBarriers<Config::kStages>& ring, bool of_dx) {
  auto load = [&](int steps, auto copy) {
    for (int step = 0; step < min(steps, Config::kStages); ++step) {
      copy(shared + step * Config::kStageBytes, SharedAddress(&ring.full[step]),
           step);
    }
  };
  if (of_dx) {
    const SingleWaveBackwardTile<Config> tile(problem);
    load(problem.K / 64, [&](uint32_t stage, uint32_t full, int step) {
      LoadDxStage<Config>(problem, tile, stage, full, step);
    });
  } else {
    const SingleWaveBackwardShare<Config> share(problem);
    load(share.steps, [&](uint32_t stage, uint32_t full, int step) {
      LoadDwStage<Config>(problem, share, stage, full, step);
    });
  }
}

// The others. Of dx also the zeros around its pixels, a few at a time, that
// loads need not queue behind them.
template <typename Config>
__device__ __forceinline__ void LoadOthers(
    const SingleWaveBackwardProblem& problem, uint32_t shared,
    RingBarriers<Config::kStages>& ring, bool of_dx) {
  auto load = [&](int steps, auto copy) {
    RingPosition<Config::kStages> at;
    for (int step = Config::kStages; step < steps; ++step) {
      BarrierWait(SharedAddress(&ring.empty[at.stage]), at.round);
      copy(shared + at.stage * Config::kStageBytes,
           SharedAddress(&ring.full[at.stage]), step);
      at.Advance();
    }
  };
  if (!of_dx) {
    const SingleWaveBackwardShare<Config> share(problem);
    return load(share.steps, [&](uint32_t stage, uint32_t full, int step) {
      LoadDwStage<Config>(problem, share, stage, full, step);
    });
  }
  const SingleWaveBackwardTile<Config> tile(problem);
  const int steps = problem.K / 64;
  const int zeros =
      (problem.walk.subs - 1) * Config::kGroups * (Config::kDxN / 64);
  int done = 0;
  load(steps, [&](uint32_t stage, uint32_t full, int step) {
    LoadDxStage<Config>(problem, tile, stage, full, step);
    if constexpr (Config::kStrided) {
      const int last = zeros * step / steps;
      StoreSingleWaveBackwardZeros<Config>(problem, tile, shared, done, last);
      done = last;
    }
  });
  if constexpr (Config::kStrided) {
    StoreSingleWaveBackwardZeros<Config>(problem, tile, shared, done, zeros);
    StoreCommit();
    StoreWaitRead<0>();  // shared memory must outlive the stores
  }
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_FUSED_BACKWARD_SINGLE_WAVE_BACKWARD_COPIES_CUH_
