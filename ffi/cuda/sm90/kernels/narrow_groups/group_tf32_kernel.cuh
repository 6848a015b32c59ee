// SPDX-License-Identifier: Apache-2.0
// fprop and dgrad of narrow groups in f32, multiplied as TF32, at any stride: 8
// to 32 channels a group.
//
// A product has 64 pixels as rows and the output channels of one group as
// columns, so that no zeros are multiplied but those that fill a group up to 8.
// A pixel's channels are a line of 128 bytes, of as many groups as there is
// room for. What a tile reads comes to shared memory once for all taps, as in
// row_band_kernel.cuh: a tap's pixels are those from another pixel on. The
// pixels that a stride leads to are boxes of their own, one a residue class, so
// that neighbouring outputs always read neighbouring pixels; a strided dgrad's
// classes of outputs read one box. Between two rows of outputs a box holds
// pixels that belong to none: they are multiplied, but not written.
//
// The filter of a line stays in shared memory, with the reduction contiguous as
// the multiplier wants it; threads bring it. A block has a range of the tiles
// of all lines. One warp loads, two warpgroups take turns with tiles, and each
// stores what it has multiplied by tensor copies from a buffer of its own.
// Where a thread has few sums two blocks share an SM, as a warpgroup mostly
// waits for what it has begun itself.
//
// A product reads its pixels from shared memory in 32 cycles, as long as it
// takes to multiply them by 64 columns. So the three taps of a filter row are
// the columns of one product, where a stride does not lead them to different
// boxes: three sums, of which the second belongs to the output one tap further
// to the left and the third to the one after that. They are added where the
// tile is written.
//
// An output's sum is thus a chain of products, or three, tap by tap: neither
// the tile nor the batch changes it.
#pragma once

#include "cuda/sm90/arch/round_tf32.cuh"
#include "cuda/sm90/arch/tensor_copies_5d.cuh"
#include "cuda/sm90/arch/wgmma_group_tf32.cuh"
#include "cuda/sm90/copy/pipeline.cuh"
#include "cuda/sm90/kernels/narrow_groups/group_tf32_problem.h"

namespace jax_convbatch::hopper {

// kN: output channels of a group. kGroups: of a line. kBlocks: of 64 pixels a
// tile. kShared: taps that are columns of one product.
template <int kN_, int kGroups_, int kBlocks_, int kShared_>
struct GroupTf32Config {
  static constexpr int kN = kN_, kGroups = kGroups_, kBlocks = kBlocks_;
  static constexpr int kShared = kShared_;
  static constexpr int kTapBytes = kN * 128;
  static constexpr int kOutBytes = kBlocks * 64 * 128;
  static constexpr int kColumns = kN * kShared;
  static constexpr int kSums =
      kGroups * kColumns / 2;  // a thread's, of a block
  static_assert(kGroups == 1 || kGroups * kN == kGroupLine);
  // Blocks of an SM, of whose registers each has as many as another.
  static constexpr int kResident = kBlocks * kSums <= kFewGroupSums ? 2 : 1;
  static constexpr int kProducerRegisters =
      kResident > 1 ? 32 : hopper::kProducerRegisters;
  static constexpr int kConsumerRegisters =
      kResident > 1 ? 104 : hopper::kConsumerRegisters;
};

inline constexpr int kMostGroupStages = 4;

struct GroupTf32Barriers {
  uint64_t full[kMostGroupStages], empty[kMostGroupStages];
};

// Where tile t of a line lies.
struct GroupPlace {
  int image, row;

  __device__ GroupPlace(const GroupTf32Problem& problem, int t) {
    image = t / problem.per_image;
    row = (t - image * problem.per_image) * problem.tiling.rows;
  }
};

// The tiles that this block has: [begin, end) of those of all lines.
struct GroupShare {
  int begin, end;

  __device__ explicit GroupShare(const GroupTf32Problem& problem) {
    const int64_t all = int64_t{problem.lines} * problem.tiles;
    begin = static_cast<int>(all * blockIdx.x / gridDim.x);
    end = static_cast<int>(all * (blockIdx.x + 1) / gridDim.x);
  }
};

// Copies what the tiles read, by one thread.
template <typename Config>
__device__ __forceinline__ void LoadGroupTiles(const GroupTf32Problem& problem,
                                               uint32_t ring,
                                               GroupTf32Barriers& barriers) {
  const GroupTiling& tiling = problem.tiling;
  const GroupShare share(problem);
  const int classes = problem.input_classes;
  const int bytes = tiling.box_rows * tiling.width * 128;
  int stage = 0;
  uint32_t round = 0;
  for (int t = share.begin; t < share.end; ++t) {
    const int line = t / problem.tiles;
    const GroupPlace place(problem, t - line * problem.tiles);
    const uint32_t full = SharedAddress(&barriers.full[stage]);
    BarrierWait(SharedAddress(&barriers.empty[stage]), round ^ 1);
    BarrierArriveExpect(full, classes * bytes);
    for (int i = 0; i < classes; ++i) {
      LoadTile5(ring + (stage * classes + i) * tiling.class_bytes,
                problem.input[i], full,
                Config::kGroups == 1 ? 0 : line * kGroupLine,
                Config::kGroups == 1 ? line : 0, problem.input_w,
                problem.input_h + place.row, place.image);
    }
    if (++stage == tiling.stages) {
      stage = 0;
      round ^= 1;
    }
  }
}

// Four neighbouring words of the filter of a line, as they lie in memory: of a
// tap, words `four` to `four` + 3 of row `row`, which is an input channel of
// all groups (in dgrad an output channel). Zeros where there are none.
template <typename Config>
__device__ __forceinline__ float4 GroupFilterAt(const GroupTf32Problem& problem,
                                                int line, int tap, int row,
                                                int four) {
  const int rows = problem.is_dgrad ? problem.outputs : problem.inputs;
  const int width = problem.is_dgrad ? problem.inputs : problem.outputs;
  const int64_t first =
      (int64_t{problem.taps[tap].filter} * rows + row) * problem.all_outputs;
  bool inside = row < rows;
  int at;
  if constexpr (Config::kGroups == 1) {
    inside = inside && four < width;
    at = line * width + four;
  } else {
    at = line * kGroupLine + four;
    inside = inside && at < problem.all_outputs;
  }
  return inside ? RoundTf32(__ldg(reinterpret_cast<const float4*>(
                      problem.filter + first + at)))
                : float4{};
}

// The filter of a line: for each tap kN rows, a group's output channels, of the
// line's input channels. By all consumers.
template <typename Config>
__device__ __forceinline__ void LoadGroupFilter(const GroupTf32Problem& problem,
                                                int line, uint32_t to) {
  constexpr int kN = Config::kN, kThreads = kConsumers * kWarpgroup;
  constexpr int kTap = kN * kGroupLine / 4;  // fours
  constexpr int kAtOnce = 9;                 // all of 3x3 filters
  const int count = problem.taps_count * kTap;
  auto word_at = [&](int tap, int row, int column) {
    return to + tap * Config::kTapBytes + row * 128 +
           ((column / 4 ^ row % 8) << 4) + column % 4 * 4;
  };
  for (int i = threadIdx.x - kWarpgroup; i < count; i += kAtOnce * kThreads) {
    float4 v[kAtOnce];
    // Of one group, fprop's rows of 32 input channels have kN words each.
    const int fours =
        Config::kGroups == 1 && !problem.is_dgrad ? kN / 4 : kGroupLine / 4;
    auto place = [&](int j, int* tap, int* row, int* four) {
      const int at = i + j * kThreads;
      *tap = at / kTap;
      *row = at % kTap / fours;
      *four = at % kTap % fours * 4;
      return at < count;
    };
    int tap, row, four;
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (place(j, &tap, &row, &four)) {
        v[j] = GroupFilterAt<Config>(problem, line, tap, row, four);
      }
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (!place(j, &tap, &row, &four)) continue;
      if (problem.is_dgrad) {
        StoreShared4(word_at(tap, row, four), v[j]);
        continue;
      }
      const int column = Config::kGroups == 1 ? row : four / kN * kN + row;
      const int first = four % kN;
      StoreShared1(word_at(tap, first, column), v[j].x);
      StoreShared1(word_at(tap, first + 1, column), v[j].y);
      StoreShared1(word_at(tap, first + 2, column), v[j].z);
      StoreShared1(word_at(tap, first + 3, column), v[j].w);
    }
  }
}

// acc += the products of some taps.
template <typename Config>
__device__ __forceinline__ void MultiplyGroupTaps(
    const GroupTf32Problem& problem, int begin, int end, uint32_t window,
    uint32_t filter, float (&acc)[Config::kBlocks][Config::kSums]) {
  constexpr int kN = Config::kN;
  const uint64_t first = Descriptor(window);
  uint64_t b = Descriptor(filter + begin * Config::kTapBytes);
  WgmmaFence();
  for (int tap = begin; tap < end; tap += Config::kShared) {
    const uint64_t a = first + problem.taps[tap].offset;
#pragma unroll
    for (int e = 0; e < kGroupLine / 8; ++e) {
      if (Config::kGroups == 1 && e >= problem.eights) break;
      const int group = Config::kGroups == 1 ? 0 : e * 8 / kN;
#pragma unroll
      for (int m = 0; m < Config::kBlocks; ++m) {
        WgmmaGroupTf32<Config::kColumns>(&acc[m][group * Config::kColumns / 2],
                                         a + e * 2 + m * (kBoxBytes >> 4),
                                         b + e * 2);
      }
    }
    b += Config::kShared * Config::kTapBytes >> 4;
  }
  WgmmaCommit();
  WgmmaWait<0>();
}

// Writes the outputs of a tile, without what lies between them. By a warpgroup,
// whose barrier is `barrier`.
template <typename Config>
__device__ __forceinline__ void WriteGroupTile(
    const GroupTf32Problem& problem,
    const float (&acc)[Config::kBlocks][Config::kSums], uint32_t to,
    int barrier) {
  constexpr int kEights = Config::kN / 8;  // of a tap and a group
  constexpr int kPairs = Config::kGroups * kEights;
  const GroupTiling& tiling = problem.tiling;
  const int lane = threadIdx.x % 32;
  const int first = threadIdx.x % kWarpgroup / 32 * 16 + lane / 4;
#pragma unroll
  for (int tap = 0; tap < Config::kShared; ++tap) {
    if (tap > 0) NamedBarrier(barrier, kWarpgroup);
#pragma unroll
    for (int m = 0; m < Config::kBlocks; ++m) {
      // Two pixels of eight channels each: all are read before any is written.
      uint32_t line[2];
      int swizzle[2];
      bool is_there[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int pixel = m * 64 + first + half * 8 - tap * problem.tap_pixels;
        const int row = pixel * problem.reciprocal >> 16;
        const int col = pixel - row * tiling.width;
        is_there[half] = pixel >= 0 && row < tiling.rows && col < tiling.cols;
        const int place = row * tiling.cols + col;
        line[half] = to + place * 128 + lane % 2 * 8;
        swizzle[half] = place % 8;
      }
      auto at = [&](int half, int pair) {
        const int chunk = 2 * pair + lane % 4 / 2;
        return line[half] + ((chunk ^ swizzle[half]) << 4);
      };
      float2 sum[2][kPairs];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int j = 0; j < kPairs; ++j) {
          sum[half][j] =
              tap > 0 && is_there[half] ? LoadShared2(at(half, j)) : float2{};
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (!is_there[half]) continue;
#pragma unroll
        for (int j = 0; j < kPairs; ++j) {
          const float* v =
              &acc[m][j / kEights * Config::kColumns / 2 +
                      (tap * kEights + j % kEights) * 4 + 2 * half];
          StoreShared2(at(half, j), make_float2(sum[half][j].x + v[0],
                                                sum[half][j].y + v[1]));
        }
      }
    }
  }
}

template <typename Config>
__device__ __forceinline__ void MultiplyGroupTiles(
    const GroupTf32Problem& problem, int group, uint32_t filter, uint32_t ring,
    uint32_t out, GroupTf32Barriers& barriers) {
  const GroupTiling& tiling = problem.tiling;
  const GroupShare share(problem);
  const int stage_bytes = problem.input_classes * tiling.class_bytes;
  const bool signals = threadIdx.x % 32 == 0;
  const bool stores = threadIdx.x % kWarpgroup == 0;
  out += group * Config::kOutBytes;
  int stage = 0, current = -1;
  uint32_t round = 0;
  for (int t = share.begin; t < share.end; ++t) {
    const int line = t / problem.tiles;
    if (line != current) {
      // Both have done all tiles of the line before.
      NamedBarrier(1, kConsumers * kWarpgroup);
      LoadGroupFilter<Config>(problem, line, filter);
      FenceAsyncProxy();
      NamedBarrier(1, kConsumers * kWarpgroup);
      current = line;
    }
    const int now = stage;
    const uint32_t phase = round;
    if (++stage == tiling.stages) {
      stage = 0;
      round ^= 1;
    }
    if ((t - share.begin) % kConsumers != group) continue;
    const GroupPlace place(problem, t - line * problem.tiles);
    const uint32_t window = ring + now * stage_bytes;
    BarrierWait(SharedAddress(&barriers.full[now]), phase);
    int begin = 0;
    for (int i = 0; i < problem.output_classes; ++i) {
      float acc[Config::kBlocks][Config::kSums];
      BeginSums(acc, [](int, int) { return 0.0f; });
      const int end = problem.taps_end[i];
      MultiplyGroupTaps<Config>(problem, begin, end, window, filter, acc);
      begin = end;
      if (i + 1 == problem.output_classes && signals) {
        BarrierArrive(SharedAddress(&barriers.empty[now]));
      }
      if (stores) StoreWaitRead<0>();  // of the tile before
      NamedBarrier(2 + group, kWarpgroup);
      WriteGroupTile<Config>(problem, acc, out, 2 + group);
      FenceAsyncProxy();
      NamedBarrier(2 + group, kWarpgroup);
      if (stores) {
        StoreTile5(problem.output[i], out,
                   Config::kGroups == 1 ? 0 : line * kGroupLine,
                   Config::kGroups == 1 ? line : 0, 0, place.row, place.image);
        StoreCommit();
      }
    }
  }
  if (stores) StoreWaitRead<0>();  // shared memory must outlive them
}

template <typename Config>
__global__ void __launch_bounds__(kThreads, Config::kResident)
    GroupTf32Kernel(const __grid_constant__ GroupTf32Problem problem) {
  extern __shared__ __align__(1024) uint8_t memory[];
  const GroupTiling& tiling = problem.tiling;
  const int ring_bytes =
      tiling.stages * problem.input_classes * tiling.class_bytes;
  const uint32_t ring = SharedAddress(memory);
  const uint32_t out = ring + ring_bytes;
  const uint32_t filter = out + kConsumers * Config::kOutBytes;
  auto& barriers = *reinterpret_cast<GroupTf32Barriers*>(
      memory + ring_bytes + kConsumers * Config::kOutBytes +
      problem.taps_count * Config::kTapBytes);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kMostGroupStages; ++i) {
      BarrierInit(SharedAddress(&barriers.full[i]), 1);
      BarrierInit(SharedAddress(&barriers.empty[i]), kWarpgroup / 32);
    }
    FenceBarrierInit();
  }
  __syncthreads();
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / kWarpgroup, 0);
  if (warpgroup == 0) {
    GiveRegisters<Config::kProducerRegisters>();
    if (threadIdx.x == 0) LoadGroupTiles<Config>(problem, ring, barriers);
  } else {
    TakeRegisters<Config::kConsumerRegisters>();
    MultiplyGroupTiles<Config>(problem, warpgroup - 1, filter, ring, out,
                               barriers);
  }
}

}  // namespace jax_convbatch::hopper
