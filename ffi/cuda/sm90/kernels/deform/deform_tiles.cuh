// SPDX-License-Identifier: Apache-2.0
// Tiles of the kernel of deformable convolutions, and the order of their
// stages.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_DEFORM_DEFORM_TILES_CUH_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_DEFORM_DEFORM_TILES_CUH_

#include "cuda/sm90/copy/pipeline.cuh"
#include "cuda/sm90/kernels/deform/deform.h"
#include "cuda/sm90/kernels/deform/deform_problem.h"

namespace jax_convbatch::hopper {

// Of the warps that sample, each has as many rows of every tile, and of a run
// the cells of so many taps at most.
inline constexpr int kSamplingWarps = 8;
inline constexpr int kSampledRows = kDeformPixels / kSamplingWarps;
inline constexpr int kSampledTaps = 9;

inline constexpr int kDeformThreads = 2 * kConsumers * kWarpgroup;
inline constexpr int kRingFree = 1, kMultiplied = 2;  // named barriers

template <typename T_, int kN_, int kStages_>
struct DeformConfig {
  using T = T_;
  static constexpr bool kTf32 = std::is_same_v<T, float>;
  static constexpr int kN = kN_, kStages = kStages_;
  static constexpr int kM = kDeformPixels;
  // A sampling lane's pixels on the way.
  static constexpr int kBuffers = kN < 256 ? 4 : 2;
  // Whether output channels are the rows of the product, and pixels its
  // columns.
  static constexpr bool kSwapped = kTf32 || kN == 256;
  static constexpr int kChannels = 128 / sizeof(T);  // of a stage
  static constexpr int kColumnBytes = kM * 128;
  static constexpr int kStageBytes = kColumnBytes + kN * 128;
  static constexpr int kRingBytes = kStages * kStageBytes;
  // Of a TF32 tile, blocks of 64 output channels of a warpgroup, and pixels.
  static constexpr int kBlocks = kN == 256 ? 2 : 1;
  static constexpr int kGroupPixels = kN == 64 ? kM / 2 : kM;
  // Finished sums lie in the ring, a pixel a row, spread over the banks.
  static constexpr int kSumRow = kN + (kSwapped ? 4 : 8);
  static_assert(kM * kSumRow * 4 <= kRingBytes);
  // 65536 registers for the four warpgroups: sums, or pixels on the way.
  static constexpr int kSamplingRegisters = kN < 256 ? 128 : kTf32 ? 80 : 88;
  static constexpr int kConsumerRegisters = 256 - kSamplingRegisters;
};

struct DeformTile {
  int pixel, group, channel, channels;  // output channels: first, and end
};

template <typename Config>
__device__ __forceinline__ DeformTile DeformTileAt(const DeformProblem& problem,
                                                   int tile) {
  uint32_t rest = tile;
  uint32_t column = TakeDigit(problem.n_tiles, rest);
  const int n = TakeDigit(problem.group_n_tiles, column);
  const int first = int(column) * problem.group_outputs;
  return {int(rest) * Config::kM, int(column), first + n * Config::kN,
          first + problem.group_outputs};
}

// This block's part of the reduction of a tile.
struct DeformRange {
  int first, end;

  __device__ DeformRange(int stages, int rank, int split)
      : first(int64_t{stages} * rank / split),
        end(int64_t{stages} * (rank + 1) / split) {}
};

// A warp's way through the stages of this block's tiles. They come in runs:
// channels of one offset group under up to kSampledTaps taps, taps innermost.
template <typename Config>
struct DeformWalk {
  DeformTile tile;
  int index, left;  // of the tile, stages that this block has still to do
  int chunk, chunk_begin, chunk_end;  // of kChannels, in the run
  int tap, tap_begin, tap_end;
  bool run_begins;

  __device__ __forceinline__ void Start(const DeformProblem& problem,
                                        const DeformRange& range, int tile_at) {
    index = tile_at;
    tile = DeformTileAt<Config>(problem, index);
    left = range.end - range.first;
    chunk_begin = tap_begin = 0;
    SetRun(problem);
    int skipped = range.first;
    for (int length; skipped >= (length = (chunk_end - chunk_begin) *
                                          (tap_end - tap_begin));) {
      skipped -= length;
      NextRun(problem);
    }
    chunk = chunk_begin + skipped / (tap_end - tap_begin);
    tap = tap_begin + skipped % (tap_end - tap_begin);
    run_begins = true;
  }

  __device__ __forceinline__ void Advance(const DeformProblem& problem,
                                          const DeformRange& range,
                                          int clusters) {
    if (--left == 0) {
      Start(problem, range, index + clusters);
      return;
    }
    if (++tap < tap_end) return;
    tap = tap_begin;
    if (++chunk < chunk_end) return;
    NextRun(problem);
    chunk = chunk_begin, tap = tap_begin;
    run_begins = true;
  }

  __device__ __forceinline__ int OffsetGroup(
      const DeformProblem& problem) const {
    return problem.offset_channels.Divide(tile.group * problem.group_channels +
                                          chunk_begin * Config::kChannels);
  }

 private:
  __device__ __forceinline__ void NextRun(const DeformProblem& problem) {
    tap_begin = tap_end;
    if (tap_begin == problem.taps) tap_begin = 0, chunk_begin = chunk_end;
    SetRun(problem);
  }

  __device__ __forceinline__ void SetRun(const DeformProblem& problem) {
    constexpr int kChannels = Config::kChannels;
    const int first = tile.group * problem.group_channels;
    const int offset_end =
        (OffsetGroup(problem) + 1) * int(problem.offset_channels.divisor());
    const int end = min(offset_end - first, problem.group_channels);
    chunk_end = (end + kChannels - 1) / kChannels;
    tap_end = min(tap_begin + kSampledTaps, problem.taps);
  }
};

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_DEFORM_DEFORM_TILES_CUH_
