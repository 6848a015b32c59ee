// SPDX-License-Identifier: Apache-2.0
// fprop and dgrad at stride 1 of few channels (row_band_plan.h says of how
// many), with each tile's pixels in shared memory once for all taps.
//
// Products have channels as rows and pixels as columns: 64 x 232 of them read
// 79 bytes of shared memory a cycle, where tiles of 64 channels as columns read
// the 128 that there are. The filter stays in shared memory. A tap's pixels are
// the row band from another pixel on: rows of a box are 128 bytes, and the
// swizzle follows from the address, so that an operand may begin at any of
// them. Between two rows of outputs the row band holds R - 1 pixels that belong
// to none: they are multiplied, but not written. Tiles that are strips of eight
// columns have none: an operand's groups of eight pixels may lie any number of
// bytes apart, and a strip's are its rows.
//
// Two warpgroups take turns, as in conv_kernel.cuh. A finished tile is written
// over the row band that it was read from.
//
// Each output adds in the same order as there.
#pragma once

#include <type_traits>

#include "cuda/sm90/arch/wgmma_96.cuh"
#include "cuda/sm90/arch/wgmma_column_strips.cuh"
#include "cuda/sm90/copy/pipeline.cuh"
#include "cuda/sm90/kernels/row_band/row_band_problem.h"
#include "cuda/sm90/kernels/row_band/row_band_store.cuh"
#include "cuda/sm90/problem/group_width.h"

namespace jax_convbatch::hopper {

struct RowBandBarriers {
  uint64_t filter[kMaxRowBandTaps];
  uint64_t full[kMaxRowBandStages];     // copied
  uint64_t written[kMaxRowBandStages];  // multiplied, and the result is there
  uint64_t empty[kMaxRowBandStages];    // stored
  uint64_t turn[kConsumers];  // the other warpgroup's tile is under way

  // Of the first copies, and of all else; each by one thread.
  __device__ void InitFirst(int taps) {
    BarrierInit(SharedAddress(&full[0]), 1);
    // All of a few, as to count takes longer.
    constexpr int kFew = kMaxGroupRowBandTaps;
#pragma unroll
    for (int i = 0; i < kFew; ++i) BarrierInit(SharedAddress(&filter[i]), 1);
    if (taps > kFew) {
#pragma unroll
      for (int i = kFew; i < kMaxRowBandTaps; ++i) {
        BarrierInit(SharedAddress(&filter[i]), 1);
      }
    }
    FenceBarrierInit();
  }
  __device__ void Init() {
    for (int i = 0; i < kMaxRowBandStages; ++i) {
      if (i > 0) BarrierInit(SharedAddress(&full[i]), 1);
      BarrierInit(SharedAddress(&written[i]), kWarpgroup / 32);
      BarrierInit(SharedAddress(&empty[i]), 1);
    }
    for (uint64_t& barrier : turn) {
      BarrierInit(SharedAddress(&barrier), kWarpgroup / 32);
    }
    FenceBarrierInit();
  }
};

// Where number t of all lies.
template <bool kColumnStrips>
__device__ __forceinline__ void Place(const RowBandProblem& problem, int t,
                                      RowBandTile* tile) {
  int row = 0;
  tile->rows = problem.tiling.rows;
  if (t >= problem.whole) {
    const int piece = t - problem.whole;
    const int of = piece / problem.pieces;
    t = problem.whole + of;
    tile->rows = problem.tiling.piece_rows;
    row = (piece - of * problem.pieces) * tile->rows;
  }
  tile->image = t / problem.per_image;
  int group = t - tile->image * problem.per_image;
  if constexpr (kColumnStrips) {
    const int strip = group;
    group = strip / problem.strips;
    tile->col = (strip - group * problem.strips) * kColumnStripCols;
  }
  tile->row = group * problem.tiling.rows + row;
}

// Which blocks share the tiles of the same output channels: a block keeps to
// one set of 64.
struct RowBandShare {
  int first, step, channel;

  __device__ explicit RowBandShare(const RowBandProblem& problem)
      : first(static_cast<int>(blockIdx.x) / problem.units),
        step(static_cast<int>(gridDim.x) / problem.units),
        channel((blockIdx.x - first * problem.units) * 64) {}
};

template <bool kColumnStrips>
__device__ __forceinline__ RowBandTile
FirstRowBand(const RowBandProblem& problem) {
  const RowBandShare share(problem);
  RowBandTile tile{};
  tile.channel = share.channel;
  Place<kColumnStrips>(problem, share.first, &tile);
  return tile;
}

// Calls visit(tile) for the tiles of this block, in order.
template <bool kColumnStrips, typename Visit>
__device__ __forceinline__ void ForRowBands(const RowBandProblem& problem,
                                            Visit visit) {
  const RowBandShare share(problem);
  RowBandTile tile{};
  tile.channel = share.channel;
  for (int t = share.first; t < problem.tiles; t += share.step) {
    Place<kColumnStrips>(problem, t, &tile);
    visit(tile);
    ++tile.turn;
    if (++tile.stage == problem.tiling.stages) {
      tile.stage = 0;
      tile.round ^= 1;
    }
  }
}

// By one thread. Of dgrad, one group's output channels are rows of the filter.
template <Contiguous kWeights, int kWidth>
__device__ __forceinline__ void LoadFilter(const RowBandProblem& problem,
                                           int channel, uint32_t filter,
                                           RowBandBarriers& barriers) {
  const TapAxis &h = problem.taps_h, &w = problem.taps_w;
  const int tap_bytes = problem.tap_bytes;
  constexpr bool kRows =
      kWeights == Contiguous::kReduction && kWidth == kOneGroup;
  uint64_t* barrier = barriers.filter;
  for (int r = 0; r < h.count; ++r) {
    for (int s = 0; s < w.count; ++s) {
      const uint32_t full = SharedAddress(barrier++);
      BarrierArriveExpect(full, tap_bytes);
      LoadTile3(filter, problem.weights, full, kRows ? 0 : channel,
                kRows ? channel : 0,
                (h.tap + r * h.tap_step) * problem.filter_width + w.tap +
                    s * w.tap_step);
      filter += tap_bytes;
    }
  }
}

template <int kWidth>
__device__ __forceinline__ void LoadRowBand(const RowBandProblem& problem,
                                            const RowBandTile& tile,
                                            uint32_t ring,
                                            RowBandBarriers& barriers) {
  const RowBandTiling& tiling = problem.tiling;
  const uint32_t full = SharedAddress(&barriers.full[tile.stage]);
  constexpr bool kOne = kWidth == kOneGroup;
  BarrierArriveExpect(full,
                      tiling.boxes * tiling.box_rows * tiling.width * 128);
  for (int i = 0; i < tiling.boxes; ++i) {
    LoadTile4(ring + tile.stage * tiling.stage_bytes + i * tiling.class_bytes,
              problem.input[kOne ? 0 : i], full, kOne ? i * 64 : tile.channel,
              problem.input_w + tile.col, problem.input_h + tile.row,
              tile.image);
  }
}

// By one thread, before the block's other barriers stand, as in
// conv_kernel.cuh. The filter comes behind the first tile, tap by tap.
template <Contiguous kWeights, bool kColumnStrips, int kWidth,
          bool kFilter = true>
__device__ __forceinline__ void LoadFirst(const RowBandProblem& problem,
                                          uint32_t filter, uint32_t ring,
                                          RowBandBarriers& barriers) {
  const RowBandTile tile = FirstRowBand<kColumnStrips>(problem);
  LoadRowBand<kWidth>(problem, tile, ring, barriers);
  if constexpr (kFilter) {
    LoadFilter<kWeights, kWidth>(problem, tile.channel, filter, barriers);
  }
}

// By one thread: all tiles but the first.
template <bool kColumnStrips, int kWidth>
__device__ __forceinline__ void LoadRowBands(const RowBandProblem& problem,
                                             uint32_t ring,
                                             RowBandBarriers& barriers) {
  ForRowBands<kColumnStrips>(problem, [&](const RowBandTile& tile) {
    if (tile.turn == 0) return;
    BarrierWait(SharedAddress(&barriers.empty[tile.stage]), tile.round ^ 1);
    LoadRowBand<kWidth>(problem, tile, ring, barriers);
  });
}

// By one thread.
template <bool kColumnStrips>
__device__ __forceinline__ void StoreRowBands(const RowBandProblem& problem,
                                              uint32_t ring,
                                              RowBandBarriers& barriers) {
  ForRowBands<kColumnStrips>(problem, [&](const RowBandTile& tile) {
    BarrierWait(SharedAddress(&barriers.written[tile.stage]), tile.round);
    StoreTile4(
        tile.rows == problem.tiling.rows ? problem.output : problem.piece,
        ring + tile.stage * problem.tiling.stage_bytes, tile.channel, tile.col,
        tile.row, tile.image);
    StoreCommit();
    StoreWaitRead<0>();
    BarrierArrive(SharedAddress(&barriers.empty[tile.stage]));
  });
}

// d += a b, for so many pixels.
template <typename T, Contiguous kWeights, int kHalf>
__device__ __forceinline__ void RowBandProduct(float (&d)[kHalf], uint64_t a,
                                               uint64_t b) {
  constexpr int kN = 2 * kHalf;
  if constexpr (kN == kColumnStripPixels || kN == kShortColumnStripPixels) {
    WgmmaColumnStrip<T, kWeights, kN>(d, a, b);
  } else {
    Wgmma<T, kWeights, Contiguous::kReduction, kN>(d, a, b);
  }
}

template <typename T, Contiguous kWeights, bool kColumnStrips, int kWidth,
          bool kTwoBoxes, typename EpilogueT>
__device__ __forceinline__ void MultiplyRowBands(const RowBandProblem& problem,
                                                 const EpilogueT& epilogue,
                                                 int group, uint32_t filter,
                                                 uint32_t ring,
                                                 RowBandBarriers& barriers) {
  const RowBandTiling& tiling = problem.tiling;
  const int step_h = (problem.taps_h.offset_step * tiling.width -
                      problem.taps_w.count * problem.taps_w.offset_step) *
                     8;
  const int step_w = problem.taps_w.offset_step * 8;  // in units of 16 bytes
  const int taps = problem.taps_h.count * problem.taps_w.count;
  const bool signals = threadIdx.x % 32 == 0;
  constexpr uint64_t kFilterStep =
      kTwoBoxes ? 16 * 64 >> 4 : kReductionStep<kWeights>;
  const uint64_t next_box = tiling.class_bytes >> 4;
  // The filter's rows that dgrad's products read behind a tap's give channels
  // that are not stored.
  const uint64_t filter_step = problem.tap_bytes >> 4;
  // Of a strip, the operand's groups are rows.
  const uint64_t groups =
      kColumnStrips ? uint64_t{kDescriptorBase} - (uint64_t{1024 >> 4} << 32) +
                          (static_cast<uint64_t>(tiling.width * 8) << 32)
                    : kDescriptorBase;
  RowBandChannels channels;
  if constexpr (EpilogueT::kPresent) {
    channels.Load<T>(epilogue, RowBandShare(problem).channel, problem.channels);
  }
  ForRowBands<kColumnStrips>(problem, [&](const RowBandTile& tile) {
    if (tile.turn % kConsumers != group) return;
    const uint32_t band = ring + tile.stage * tiling.stage_bytes;
    auto multiply = [&](auto pixels) {
      constexpr int kN = decltype(pixels)::value;
      float acc[1][kN / 2];
      BeginSums(acc, [&](int, int i) { return channels.begin[i / 2 % 2]; });
      if (tile.turn > 0) {
        BarrierWait(SharedAddress(&barriers.turn[group]),
                    (tile.turn - 1) / kConsumers & 1);
      }
      BarrierWait(SharedAddress(&barriers.full[tile.stage]), tile.round);
      // Of 32 output channels, as 64 rows of a product, all twice.
      const uint64_t first_tap =
          kTwoBoxes ? HalfLineDescriptor(filter, /*box_stride=*/0)
                    : Descriptor(filter);
      auto add_box = [&](int box, bool last, auto reduction_steps) {
        uint64_t a = first_tap + box * 4 * kFilterStep;
        uint64_t b = (groups | (band & 0x3FFFF) >> 4) + box * next_box;
        for (int tap = 0, s = 0; tap < taps; ++tap) {
          BarrierWait(SharedAddress(&barriers.filter[tap]), 0);
          WgmmaFence();
#pragma unroll
          for (int k = 0; k < decltype(reduction_steps)::value; ++k) {
            RowBandProduct<T, kWeights>(
                acc[0], a + k * kFilterStep,
                b + k * kReductionStep<Contiguous::kReduction>);
          }
          WgmmaCommit();
          if (last && tap + 1 == taps && signals) {
            BarrierArrive(SharedAddress(&barriers.turn[1 - group]));
          }
          WgmmaWait<1>();
          a += filter_step;
          b += step_w;
          if (++s == problem.taps_w.count) {
            s = 0;
            b += step_h;
          }
        }
      };
      // A loop each: what decides within one holds the multiplier up.
      const int steps = problem.reduction_steps;
      if constexpr (kTwoBoxes) {
        add_box(0, false, std::integral_constant<int, 4>());
        if (steps == 8) {
          add_box(1, true, std::integral_constant<int, 4>());
        } else {
          add_box(1, true, std::integral_constant<int, 2>());
        }
      } else if (kWidth != kOneGroup || steps == 4) {
        add_box(0, true, std::integral_constant<int, 4>());
      } else if (steps == 3) {
        add_box(0, true, std::integral_constant<int, 3>());
      } else {
        add_box(0, true, std::integral_constant<int, 2>());
      }
      WgmmaWait<0>();
      // Every warp's products have read the row band.
      NamedBarrier(1 + group, kWarpgroup);
      if constexpr (EpilogueT::kPresent) {
        WriteLayerRowBand<T, kColumnStrips>(epilogue, channels, acc[0], problem,
                                            tile, band);
      } else {
        WriteRowBand<kColumnStrips>(acc[0], problem, tile.rows, band,
                                    [](const float* v, int i) {
                                      return Pack<T>(v[2 * i], v[2 * i + 1]);
                                    });
      }
    };
    if (tile.rows != tiling.rows) {
      multiply(std::integral_constant<int, kRowBandPiecePixels>());
    } else if constexpr (!kColumnStrips) {
      multiply(std::integral_constant<int, kRowBandPixels>());
    } else if (kWidth != kOneGroup || tiling.pixels == kColumnStripPixels) {
      multiply(std::integral_constant<int, kColumnStripPixels>());
    } else {
      multiply(std::integral_constant<int, kShortColumnStripPixels>());
    }
    FenceAsyncProxy();
    __syncwarp();
    if (signals) BarrierArrive(SharedAddress(&barriers.written[tile.stage]));
  });
}

// kWidth: see group_width.h; narrow groups have group_row_band.cuh. kTwoBoxes:
// see HasTwoBoxes.
template <typename T, Contiguous kWeights, bool kColumnStrips,
          typename EpilogueT, int kWidth = kOneGroup, bool kTwoBoxes = false>
__global__ void __launch_bounds__(kThreads, 1)
    RowBandKernel(const __grid_constant__ RowBandProblem problem,
                  const __grid_constant__ EpilogueT epilogue) {
  extern __shared__ __align__(1024) uint8_t memory[];
  const int taps = problem.taps_h.count * problem.taps_w.count;
  const int filter_bytes = taps * problem.tap_bytes;
  auto& barriers = *reinterpret_cast<RowBandBarriers*>(
      memory + filter_bytes +
      problem.tiling.stages * problem.tiling.stage_bytes);
  const uint32_t filter = SharedAddress(memory);
  const uint32_t ring = filter + filter_bytes;
  // Each by a warp of its own.
  if (threadIdx.x == 64) {
    PrefetchMap(problem.input[0]);
    PrefetchMap(problem.weights);
    PrefetchMap(problem.output);
  }
  if (threadIdx.x == 0) {
    barriers.InitFirst(taps);
    LoadFirst<kWeights, kColumnStrips, kWidth>(problem, filter, ring, barriers);
  }
  if (threadIdx.x == 96) barriers.Init();
  __syncthreads();

  const int warpgroup = __shfl_sync(~0u, threadIdx.x / kWarpgroup, 0);
  if (warpgroup == 0) {
    GiveRegisters<kProducerRegisters>();
    if (threadIdx.x == 0) {
      LoadRowBands<kColumnStrips, kWidth>(problem, ring, barriers);
    } else if (threadIdx.x == 64) {
      StoreRowBands<kColumnStrips>(problem, ring, barriers);
    }
  } else {
    TakeRegisters<kConsumerRegisters>();
    MultiplyRowBands<T, kWeights, kColumnStrips, kWidth, kTwoBoxes>(
        problem, epilogue, warpgroup - 1, filter, ring, barriers);
  }
}

}  // namespace jax_convbatch::hopper
