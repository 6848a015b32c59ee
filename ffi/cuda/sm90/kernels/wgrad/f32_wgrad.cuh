// SPDX-License-Identifier: Apache-2.0
// What wgrad of f32 has in common, as TF32 (wgrad_tf32_kernel.cuh) and by six
// products of bf16 (bf16x6_wgrad.cuh): tiles and their rows, copies, how the
// warpgroups share the work, and partials. x is the left operand and goes
// through registers; a warpgroup of its own makes of dy, within its stage, what
// is multiplied. Otherwise the ring, the line of steps and the partials are
// those of wgrad_kernel.cuh, with stages of 32 pixels.
#pragma once

#include "cuda/common/dependent_launch.cuh"
#include "cuda/sm90/kernels/wgrad/wgrad_kernel.cuh"
#include "cuda/sm90/kernels/wgrad/wgrad_walk.cuh"
#include "cuda/sm90/mainloop/tf32_fragments.cuh"
#include "cuda/sm90/problem/wgrad_tiling.h"

namespace jax_convbatch::hopper {

// kM filter rows by kN output channels. kTaps: 1, and the rows are boxes of 32
// channels, each with pixels of its own, or 3, and they are a row of taps by 64
// channels, with pixels for all three: a warpgroup has one tap, and reads them
// that far on.
// kWidth: see group_width.h.
template <int kM_, int kN_, int kStages_, int kTaps_, int kWidth_ = kOneGroup>
struct F32WgradTile {
  static constexpr int kWidth = kWidth_;
  static constexpr int kM = kM_, kN = kN_, kStages = kStages_, kTaps = kTaps_;
  static_assert(kTaps == 1 || kM == kTapRowTile);
  static constexpr int kMultipliers = kTaps == 1 ? 2 : 3;  // warpgroups
  static constexpr int kMultiplierThreads = kMultipliers * kWarpgroup;
  static constexpr int kThreads = 2 * kWarpgroup + kMultiplierThreads;
  static constexpr int kRows = kM / kMultipliers / 64;  // a warpgroup's, of 64

  static constexpr int kXBoxes = kTaps == 1 ? kM / kTf32Block : 2;
  static constexpr int kXBoxBytes =
      kTaps == 1 ? kTf32BoxBytes : (32 + kTapReach) * 128;
  static constexpr int kXBytes = kXBoxes * kXBoxBytes;
  static constexpr int kDyBytes = kN / kTf32Block * kTf32BoxBytes;
  static constexpr int kIssuers = 4;
  // Of a partial: four accumulators of every multiplying thread at a time.
  static constexpr int kQuads = kRows * kN / 8;
  static constexpr int kPartialFloats = kM * kN;
};

// Where a tile lies among a group's filter rows, and its first output channel,
// those of its group up to k_end and its group's first input channel, among
// all.
template <typename Config>
struct F32TilePlace {
  int m, k, k_end, input_channel = 0;

  __device__ F32TilePlace(const WgradTiles& tiles, int tile) {
    int first = 0;
    k_end = tiles.K;
    if constexpr (Config::kWidth != kOneGroup) {
      const int group = tile / tiles.group_tiles;
      tile -= group * tiles.group_tiles;
      first = group * tiles.group_outputs;
      k_end = min(k_end, first + tiles.group_outputs);
      input_channel = group * tiles.group_inputs;
    }
    m = tile / tiles.n_tiles;
    k = first + tile % tiles.n_tiles * Config::kN;
  }
};

// A row of dw.
struct TapChannel {
  int tap, c;
};

// The first of the rows of a tile that a multiplying thread has.
template <typename Config>
__device__ __forceinline__ TapChannel FirstRow(const WgradProblem& problem,
                                               int m_tile, int thread) {
  const FragmentLane<Config::kRows> lane(thread);
  const int warpgroup = thread / kWarpgroup;
  int tap, c;
  if constexpr (Config::kTaps == 1) {
    const int block = m_tile * Config::kXBoxes +
                      warpgroup * (Config::kXBoxes / Config::kMultipliers) +
                      lane.box;
    tap = block / problem.channel_blocks;
    c = (block - tap * problem.channel_blocks) * kTf32Block;
  } else {
    const int r = m_tile / problem.channel_blocks;
    tap = r * Config::kTaps + warpgroup;
    c = (m_tile - r * problem.channel_blocks) * 64 + lane.box * kTf32Block;
  }
  return {tap, c + lane.chunk * 4 + lane.half * 2};
}

// The boxes of a stage are shared out among the issuing threads, one a warp.
template <typename Config, bool kVolumes>
__device__ __forceinline__ void IssueF32WgradCopies(
    const WgradProblem& problem, int issuer, uint32_t ring,
    uint64_t (&loaded)[Config::kStages],
    RingBarriers<Config::kStages>& barriers) {
  RingPosition<Config::kStages> at;
  const int64_t end = problem.Begin(blockIdx.x + 1);
  for (int64_t i = problem.Begin(blockIdx.x); i < end;) {
    const WgradPartial partial = PartialAt(problem, i, end);
    i += partial.end - partial.begin;
    const F32TilePlace<Config> place(problem, partial.tile);
    const int channel = place.k, m_tile = place.m;
    const int channels = min(Config::kN, place.k_end - channel);
    // As in wgrad_kernel.cuh, boxes past the last tap or channel are left out.
    int x_boxes;
    constexpr int kMine =
        (Config::kXBoxes + Config::kIssuers - 1) / Config::kIssuers;
    int c[kMine];
    TapOffset offset[kMine];
    if constexpr (Config::kTaps == 1) {
      const int first = m_tile * Config::kXBoxes;
      x_boxes =
          min(Config::kXBoxes, problem.taps * problem.channel_blocks - first);
#pragma unroll
      for (int m = 0; m < kMine; ++m) {
        const int block = first + m * Config::kIssuers + issuer;
        const int tap = block / problem.channel_blocks;
        const int r = tap / problem.filter_width;
        c[m] = place.input_channel +
               (block - tap * problem.channel_blocks) * kTf32Block;
        offset[m] = OffsetOfRow<kVolumes>(problem, r);
        offset[m].w = (tap - r * problem.filter_width) * problem.dilation_w;
      }
    } else {
      const int r = m_tile / problem.channel_blocks;
      const int first = (m_tile - r * problem.channel_blocks) * 64;
      x_boxes =
          min(Config::kXBoxes,
              (problem.group_inputs - first + kTf32Block - 1) / kTf32Block);
      c[0] = place.input_channel + first + issuer * kTf32Block;
      offset[0] = OffsetOfRow<kVolumes>(problem, r);
    }
    const int bytes = x_boxes * Config::kXBoxBytes +
                      (channels + kTf32Block - 1) / kTf32Block * kTf32BoxBytes;
    for (int step = partial.begin; step < partial.end; ++step) {
      const unsigned pixel = step * unsigned{kTf32Block};
      const unsigned line = pixel / unsigned(problem.cols);
      const int image = line / unsigned(problem.rows);
      const int row = line - image * problem.rows;
      const int col = pixel - line * problem.cols;
      const PixelPlace place = PlaceInDy<kVolumes>(problem, col, row, image);
      const PixelPlace base = PlaceInX<kVolumes>(problem, place);
      const uint32_t full = SharedAddress(&loaded[at.stage]);
      const uint32_t x = ring + at.stage * Config::kStageBytes;
      BarrierWait(SharedAddress(&barriers.empty[at.stage]), at.round ^ 1);
      if (issuer == 0) {
        BarrierArriveExpect(full, bytes);
      } else {
        BarrierArrive(full);
      }
#pragma unroll
      for (int n = 0; n < Config::kN / kTf32Block; ++n) {
        if ((Config::kXBoxes + n) % Config::kIssuers != issuer ||
            n * kTf32Block >= channels) {
          continue;
        }
        const uint32_t dy = x + Config::kXBytes + n * kTf32BoxBytes;
        const int k = channel + n * kTf32Block;
        if constexpr (Config::kTaps == 1) {
          LoadTile2(dy, problem.dy, full, k, pixel);
        } else {
          LoadTap(kVolumes, dy, problem.dy, full, k, place, {0, 0});
        }
      }
#pragma unroll
      for (int m = 0; m < kMine; ++m) {
        const int box = m * Config::kIssuers + issuer;
        if (box >= x_boxes) continue;
        LoadTap(kVolumes, x + box * Config::kXBoxBytes, problem.x, full, c[m],
                base, offset[m]);
      }
      at.Advance();
    }
  }
}

// The partials of a block, by the warpgroups that multiply:
// `multiply(accumulators, steps, x, loader, at)` does the stages of a partial,
// and the accumulators that `quad_of` picks go to the workspace, or, where the
// partial is a whole tile, to dw by `write(tile, quad, thread, v)`.
template <typename Config, typename Multiply, typename QuadOf, typename Write>
__device__ __forceinline__ void ConsumeF32Wgrad(const WgradProblem& problem,
                                                uint32_t ring,
                                                Multiply multiply,
                                                QuadOf quad_of, Write write) {
  const int thread = threadIdx.x - 2 * kWarpgroup;
  const int warpgroup = thread / kWarpgroup;
  constexpr bool kOwnPixels = Config::kTaps == 1;
  const uint32_t x =
      ring +
      (kOwnPixels ? warpgroup * (Config::kXBytes / Config::kMultipliers) : 0);
  // Of 8 pixels, lane % 4 takes two in turn, as TransposeDy has them.
  const FragmentLoader<Config::kRows> loader(
      2 * (threadIdx.x % 4) + (kOwnPixels ? 0 : warpgroup * problem.dilation_w),
      1, Config::kXBoxBytes);
  RingPosition<Config::kStages> at;
  const int64_t end = problem.Begin(blockIdx.x + 1);
  for (int64_t i = problem.Begin(blockIdx.x); i < end;) {
    const WgradPartial partial = PartialAt(problem, i, end);
    const int steps = partial.end - partial.begin;
    i += steps;
    float acc[Config::kRows][Config::kN / 2];
    multiply(acc, steps, x, loader, at);
    // Not before: blocks of the kernel that adds would fill SMs that have no
    // block here.
    if (i == end) LaunchDependents();
    const bool whole = steps == problem.steps;
    float4* partial_at = reinterpret_cast<float4*>(problem.partials) +
                         PartialSlot(problem, blockIdx.x, partial.tile) *
                             (Config::kPartialFloats / 4) +
                         thread;
#pragma unroll
    for (int quad = 0; quad < Config::kQuads; ++quad) {
      const float4 v = quad_of(acc, quad);
      if (whole) {
        write(partial.tile, quad, thread, v);
      } else {
        partial_at[quad * Config::kMultiplierThreads] = v;
      }
    }
  }
}

// One warpgroup loads, one has `change_dy(ring, loaded, barriers)` make of a
// stage's dy what the others multiply, in `consume(ring, barriers)`.
template <typename Config, typename ChangeDy, typename Consume>
__device__ __forceinline__ void RunF32Wgrad(const WgradProblem& problem,
                                            ChangeDy change_dy,
                                            Consume consume) {
  extern __shared__ uint8_t shared[];
  // A stage is loaded once its copies are there, full once dy is changed.
  __shared__ RingBarriers<Config::kStages> barriers;
  __shared__ alignas(8) uint64_t loaded[Config::kStages];
  const uint32_t ring = (SharedAddress(shared) + 1023) & ~1023u;
  if (threadIdx.x == 32) {
    PrefetchMap(problem.x);
    PrefetchMap(problem.dy);
  }
  if (threadIdx.x == 0) {
    for (uint64_t& barrier : loaded) {
      BarrierInit(SharedAddress(&barrier), Config::kIssuers);
    }
    barriers.Init(kWarpgroup / 32, Config::kMultiplierThreads / 32);
  }
  __syncthreads();
  const int warpgroup = threadIdx.x / kWarpgroup;
  if (warpgroup == 0) {
    GiveRegisters<kProducerRegisters>();
    if (threadIdx.x % 32 == 0) {
      ByAxes<Config>(problem, [&](auto volumes) {
        IssueF32WgradCopies<Config, decltype(volumes)::value>(
            problem, threadIdx.x / 32, ring, loaded, barriers);
      });
    }
  } else if (warpgroup == 1) {
    GiveRegisters<Config::kDyRegisters>();
    change_dy(ring, loaded, barriers);
  } else {
    TakeRegisters<Config::kMultiplierRegisters>();
    consume(ring, barriers);
  }
}

// The sum of a quad's partials, in order. False where the tile was in one
// partial, which is in dw already.
template <typename Config>
__device__ __forceinline__ bool SumPartials(const WgradProblem& problem,
                                            int tile, int quad, float4* sum) {
  const int64_t line_begin = int64_t{tile} * problem.steps;
  const int64_t line_end = line_begin + problem.steps;
  auto holder = [&](int64_t step) {
    const int64_t line = int64_t{problem.tiles} * problem.steps;
    int block = static_cast<int>(step * problem.blocks / line);
    while (problem.Begin(block + 1) <= step) ++block;
    return block;
  };
  const int first = holder(line_begin);
  const int last = holder(line_end - 1);
  if (first == last) return false;
  const float4* partials = reinterpret_cast<const float4*>(problem.partials) +
                           quad * Config::kMultiplierThreads + threadIdx.x;
  auto partial = [&](int64_t slot) {
    return partials[slot * (Config::kPartialFloats / 4)];
  };
  const bool second = problem.Begin(first) < line_begin;
  WaitForPrimary();
  *sum = partial(2 * first + second);
#pragma unroll 16
  for (int block = first + 1; block <= last; ++block) {
    const float4 v = partial(2 * block);
    sum->x += v.x, sum->y += v.y, sum->z += v.z, sum->w += v.w;
  }
  return true;
}

}  // namespace jax_convbatch::hopper
