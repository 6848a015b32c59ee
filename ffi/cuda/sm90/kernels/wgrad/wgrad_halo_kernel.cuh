// SPDX-License-Identifier: Apache-2.0
// wgrad of 3x3 filters at stride 1, with x in shared memory once for all taps.
//
// Pixels lie in shared memory with the images innermost: [column, image,
// channel], 1 to 16 images at a time. A tap's shift by a column is then a shift
// by as many rows of 128 bytes, whose swizzle follows from the address: the
// three taps of a filter row are one operand of 3 x 64 columns whose boxes
// begin one pixel after another, and so overlap. Padding is filled in by TMA.
//
// A stage holds one row of a strip of x, with the columns that taps add to it,
// and a row of dy: with the two stages before it, the rows of dy that this row
// of x multiplies.
// Where the filter is dilated, so is the pixel's distance from tap to tap, and
// the rows that follow each other are those that taps connect: every second,
// then the others. Warpgroup r multiplies with filter row r, and so by the row
// of dy of r stages before: the first to begin is the first to end, and hands
// on its sums while the others multiply. dw is formed transposed (output
// channels by taps x input channels): for each 16 pixels dy is read once, and
// 192 columns of x.
#pragma once

#include "cuda/common/dependent_launch.cuh"
#include "cuda/sm90/arch/tensor_copies_5d.cuh"
#include "cuda/sm90/copy/pipeline.cuh"
#include "cuda/sm90/kernels/wgrad/wgrad_halo_cluster_reduce.cuh"
#include "cuda/sm90/kernels/wgrad/wgrad_halo_scheduler.cuh"
#include "cuda/sm90/problem/wgrad_tiling.h"

namespace jax_convbatch::hopper {

// Of three axes, where a tile's tap of depth and its block of channels are.
struct HaloDepth {
  int t, c;

  __device__ HaloDepth(const WgradTiles& tiles, int tile) {
    const int block = tile / tiles.n_tiles;
    t = block / tiles.channel_blocks;
    c = block - t * tiles.channel_blocks;
  }
};

template <int kWidth, bool k3d = false>
__device__ __forceinline__ BlockOrigin HaloOrigin(const WgradTiles& tiles,
                                                  int tile, int tap) {
  const int c = tile / tiles.n_tiles, n = tile % tiles.n_tiles;
  if constexpr (k3d) {
    const HaloDepth at(tiles, tile);
    return {at.t * 9 + tap, at.c * 64, n * 64, tiles.K};
  }
  if constexpr (kWidth == kOneGroup) return {tap, c * 64, n * 64, tiles.K};
  const int group = c / tiles.group_blocks, first = group * tiles.group_outputs;
  return {tap, (c - group * tiles.group_blocks) * 64, first + n * 64,
          min(tiles.K, first + tiles.group_outputs)};
}

// The first of the tile's input channels.
template <int kWidth>
__device__ __forceinline__ int HaloInput(const WgradTiles& tiles, int tile) {
  const int c = tile / tiles.n_tiles;
  if constexpr (kWidth != kAnyGroups) return c * 64;
  const int group = c / tiles.group_blocks;
  return group * tiles.group_inputs + (c - group * tiles.group_blocks) * 64;
}

// kWidth: see group_width.h.
template <typename T_, int kMultiplications_, int kWidth_ = kOneGroup,
          bool k3d_ = false>
struct HaloConfig {
  using T = T_;
  using Layout = HaloConfig<T_, 7, kWidth_, k3d_>;  // AddWgradPartials'
  static constexpr int kWidth = kWidth_;
  static constexpr bool k3d = k3d_;
  static constexpr int kMultiplications = kMultiplications_;  // of a step
  static constexpr int kTaps = 3;  // of a filter row; and filter rows
  static constexpr int kThreads = (kTaps + 1) * kWarpgroup;
  // 32 x 128 + 160 x 384 registers: what an SM has.
  static constexpr int kProducerRegisters = 32;
  static constexpr int kConsumerRegisters = 160;

  static constexpr int kColumns = kTaps * 64;
  static constexpr int kQuads = kColumns / 8;  // of a thread
  static constexpr int kConsumed = kTaps * kWarpgroup;

  static constexpr bool kTransposed = true;
  static constexpr int kMaxCluster = 2;

  // Eight quads are one tap's.
  __device__ static bool Has(const WgradTiles&, int, int, int) { return true; }

  __device__ static BlockOrigin Origin(const WgradTiles& tiles, int tile,
                                       int block, int thread) {
    return HaloOrigin<kWidth, k3d>(tiles, tile,
                                   thread / kWarpgroup * kTaps + block);
  }
};

// Rows of one strip: `count` of dy, from `row` on, `dilation` apart.
struct HaloRun {
  int image, col, row, count;
  // Of three axes: the first slice of dy and, of x, of the tile's tap.
  int slice = 0, x_slice = 0;
  bool inside = true;  // whether x has any of these slices
};

// The run that begins at `step` of a tile, of a partial that ends at `end`.
template <bool k3d>
__device__ __forceinline__ HaloRun RunAt(const HaloProblem& problem, int tile,
                                         int step, int end) {
  const int strip = step / problem.rows;
  const int in_strip = step - strip * problem.rows;
  const int group = strip / problem.strips;
  // The first classes of rows have one more than the others.
  const int most = (problem.rows - 1) / problem.dilation + 1;
  const int whole = problem.rows - (most - 1) * problem.dilation;
  const int late = in_strip - whole * most;
  const int size = late < 0 ? most : most - 1;
  const int from = late < 0 ? in_strip : late;
  const int row_class = from / size;
  const int of_class = from - row_class * size;
  HaloRun run{group * problem.images,
              (strip - group * problem.strips) * problem.strip,
              of_class * problem.dilation + row_class + (late < 0 ? 0 : whole),
              min(size - of_class, end - step)};
  if constexpr (k3d) {  // slices are the run's images
    run.image = group / problem.slice_groups;
    run.slice = (group - run.image * problem.slice_groups) * problem.images;
    run.x_slice = run.slice + HaloDepth(problem, tile).t - problem.pad_d;
    run.inside =
        run.x_slice < problem.depth && run.x_slice + problem.images > 0;
  }
  return run;
}

// By one thread.
template <typename Config, HaloRole kRole>
__device__ __forceinline__ void IssueHaloCopies(const HaloProblem& problem,
                                                uint32_t ring,
                                                HaloBarriers& barriers) {
  HaloRing at{problem.stages};
  HaloWalk<kRole> walk(problem);
  for (WgradPartial partial; walk.Next(&partial);) {
    int c = 0;
    if constexpr (Config::k3d) {
      c = HaloDepth(problem, partial.tile).c * 64;
    } else {
      c = HaloInput<Config::kWidth>(problem, partial.tile);
    }
    const int k = Config::Origin(problem, partial.tile, 0, 0).k;
    for (int step = partial.begin; step < partial.end;) {
      const HaloRun run =
          RunAt<Config::k3d>(problem, partial.tile, step, partial.end);
      step += run.count;
      if (!run.inside) continue;
      for (int row = 0; row < run.count + 2; ++row) {
        const uint32_t full = SharedAddress(&barriers.ring.full[at.stage]);
        const uint32_t x =
            ring + at.stage * (problem.x_bytes + problem.dy_bytes);
        const int h = run.row + row * problem.dilation - problem.pad_h;
        // Rows of padding are neither loaded nor multiplied.
        const bool inside = unsigned(h) < unsigned(problem.height);
        BarrierWait(SharedAddress(&barriers.ring.empty[at.stage]),
                    at.round ^ 1);
        const bool has_dy = row < run.count;
        BarrierArriveExpect(
            full, inside * problem.x_bytes + has_dy * problem.dy_bytes);
        auto load = [&](uint32_t to, const CUtensorMap& map, int channel,
                        int slice, int col, int of_row) {
          if constexpr (Config::k3d) {
            LoadTile5(to, map, full, channel, slice, col, of_row, run.image);
          } else {
            LoadTile4(to, map, full, channel, run.image, col, of_row);
          }
        };
        if (inside) {
          load(x, problem.x, c, run.x_slice, run.col - problem.pad_w, h);
        }
        if (has_dy) {
          load(x + problem.x_bytes, problem.dy, k, run.slice, run.col,
               run.row + row * problem.dilation);
        }
        at.Advance();
      }
    }
  }
  if (problem.cluster > 1) OfferStages(at, barriers);
}

// What helpers have left of a tile is added to sums of its own block.
template <typename Config, int kSums>
__device__ __forceinline__ void AddHelped(const HaloProblem& problem, int tile,
                                          int thread, float (&acc)[kSums]) {
  constexpr int kBatch = 8;  // loads at a time
  static_assert(Config::kQuads % kBatch == 0 && kSums == 4 * Config::kQuads);
  const int partials = SecondPartial(problem, tile) > 0 ? 2 : 1;
  WaitForPrimary();
#pragma unroll 1
  for (int partial = 0; partial < partials; ++partial) {
    const float4* from =
        HelperPartial<Config>(problem, tile, partial > 0, thread);
#pragma unroll
    for (int first = 0; first < Config::kQuads; first += kBatch) {
      float4 v[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        v[i] = __ldcg(from + (first + i) * Config::kConsumed);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        float* a = &acc[(first + i) * 4];
        a[0] += v[i].x, a[1] += v[i].y, a[2] += v[i].z, a[3] += v[i].w;
      }
    }
  }
}

template <typename Config, HaloRole kRole>
__device__ __forceinline__ void ConsumeHalo(const HaloProblem& problem,
                                            uint32_t ring,
                                            HaloBarriers& barriers) {
  const int thread = threadIdx.x - kWarpgroup;
  // The same in all lanes, and known to be.
  const int filter_row = __shfl_sync(~0u, thread / kWarpgroup, 0);
  const bool signals = threadIdx.x % 32 == 0;
  const int stage_bytes = problem.x_bytes + problem.dy_bytes;
  HaloRing at{problem.stages};
  int passed = 0;  // stages that are not given back
  HaloWalk<kRole> walk(problem);
  for (WgradPartial partial; walk.Next(&partial);) {
    float acc[Config::kColumns / 2];
#pragma unroll
    for (int j = 0; j < Config::kColumns / 2; ++j) acc[j] = 0.0f;
    for (int step = partial.begin; step < partial.end;) {
      const HaloRun run =
          RunAt<Config::k3d>(problem, partial.tile, step, partial.end);
      step += run.count;
      if (!run.inside) continue;
      for (int row = 0; row < run.count + 2; ++row) {
        const int dy_row = row - filter_row;
        // Who has done its part of the run waits for no more of it. These are
        // two stages at most, and a stage is filled again after the third
        // warpgroup has seen the next three full: so a barrier is never two
        // phases behind who waits for it.
        if (dy_row < run.count) {
          BarrierWait(SharedAddress(&barriers.ring.full[at.stage]), at.round);
        }
        const int h = run.row + row * problem.dilation - problem.pad_h;
        // What was multiplied up to the stage before has been read in the end.
        if (unsigned(dy_row) < unsigned(run.count) &&
            unsigned(h) < unsigned(problem.height)) {
          const uint64_t dy = StridedDescriptor(
              ring + at.Before(filter_row) * stage_bytes + problem.x_bytes,
              kBoxBytes);
          const uint64_t x = StridedDescriptor(ring + at.stage * stage_bytes,
                                               problem.tap_bytes);
          WgmmaFence();
#pragma unroll
          for (int j = 0; j < Config::kMultiplications; ++j) {
            Wgmma<typename Config::T, Contiguous::kRows, Contiguous::kRows,
                  Config::kColumns>(acc,
                                    dy + j * kReductionStep<Contiguous::kRows>,
                                    x + j * kReductionStep<Contiguous::kRows>);
          }
          WgmmaCommit();
          WgmmaWait<1>();
        } else {
          WgmmaWait<0>();
        }
        if (passed <= filter_row) {
          ++passed;
        } else if (signals) {
          BarrierArrive(
              SharedAddress(&barriers.ring.empty[at.Before(1 + filter_row)]));
        }
        at.Advance();
      }
    }
    WgmmaWait<0>();
    auto quad_of = [&](int quad) {
      const float* a = &acc[quad * 4];
      return make_float4(a[0], a[1], a[2], a[3]);
    };
    if constexpr (kRole == HaloRole::kHelpers) {
      float4* to = HelperPartial<Config>(
          problem, partial.tile, partial.begin > problem.own_steps, thread);
#pragma unroll
      for (int quad = 0; quad < Config::kQuads; ++quad) {
        to[quad * Config::kConsumed] = quad_of(quad);
      }
    } else if constexpr (kRole == HaloRole::kOwners) {
      AddHelped<Config>(problem, partial.tile, thread, acc);
      NamedBarrier(1, Config::kConsumed);  // all have multiplied
      StoreBlocks<Config>(problem, partial.tile, thread, ring, quad_of);
    } else if constexpr (kRole == HaloRole::kWhole) {
      StoreRows<Config>(problem, partial.tile, thread,
                        ring + problem.stages * stage_bytes, quad_of);
    } else if (problem.cluster > 1) {
      for (; passed > 0; --passed) {
        if (signals) {
          BarrierArrive(SharedAddress(&barriers.ring.empty[at.Before(passed)]));
        }
      }
      AddInTwoByParts<Config>(problem, partial.tile, thread, ring, at.stage,
                              barriers, quad_of);
    } else {
      WritePartial<Config>(problem, blockIdx.x, partial, true, thread, ring,
                           quad_of);
    }
  }
}

// Helpers let the tiles' owners begin at once, on the SMs that they leave.
template <typename Config, HaloRole kRole>
__global__ void __launch_bounds__(Config::kThreads, 1)
    WgradHaloKernel(const __grid_constant__ HaloProblem problem) {
  extern __shared__ uint8_t shared[];
  __shared__ HaloBarriers barriers;
  const uint32_t ring = (SharedAddress(shared) + 1023) & ~1023u;
  if (kRole == HaloRole::kHelpers) LaunchDependents();
  if (threadIdx.x == 32) {
    PrefetchMap(problem.x);
    PrefetchMap(problem.dy);
  }
  if (threadIdx.x == 0) {
    barriers.Init(Config::kConsumed / 32, Config::kQuads / 2 * kWarpgroup * 16);
  }
  __syncthreads();
  if (problem.cluster > 1) ClusterArrive();
  if (threadIdx.x < kWarpgroup) {
    GiveRegisters<Config::kProducerRegisters>();
    if (threadIdx.x == 0) {
      IssueHaloCopies<Config, kRole>(problem, ring, barriers);
      if (kRole != HaloRole::kHelpers) LaunchDependents();
      // What follows this kernel follows the one before it, too.
      if (kRole == HaloRole::kWhole) WaitForPrimary();
    }
  } else {
    TakeRegisters<Config::kConsumerRegisters>();
    ConsumeHalo<Config, kRole>(problem, ring, barriers);
  }
}

}  // namespace jax_convbatch::hopper
