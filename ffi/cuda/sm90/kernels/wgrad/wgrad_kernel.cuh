// SPDX-License-Identifier: Apache-2.0
// wgrad: dw[tap, c, k] = sum over pixels of x[pixel + tap, c] dy[pixel, k].
//
// The same ring and the same warpgroups as conv_kernel.cuh, with both operands
// transposed by the multiplier: a stage holds 64 pixels of x (im2col) for each
// block of filter rows and of dy for each 64 output channels.
#pragma once

#include "cuda/common/dependent_launch.cuh"
#include "cuda/sm90/copy/pipeline.cuh"
#include "cuda/sm90/kernels/wgrad/wgrad_cluster_reduce.cuh"
#include "cuda/sm90/kernels/wgrad/wgrad_walk.cuh"
#include "cuda/sm90/problem/wgrad_tiling.h"

namespace jax_convbatch::hopper {

// Where a tile lies among filter rows and output channels. Tiles along the
// longer side follow each other, so that most neighbours share the other side.
struct TilePlace {
  int m, n;
  int unit = 0;  // of several groups, see wgrad_tiling.h

  __device__ TilePlace(const WgradTiles& tiles, int tile,
                       int width = kOneGroup) {
    if (width != kOneGroup) {
      unit = tile / tiles.group_tiles;
      tile -= unit * tiles.group_tiles;
    }
    uint32_t major = tile;
    const int minor = TakeDigit(tiles.by_minor_tiles, major);
    m = tiles.m_minor ? minor : major;
    n = tiles.m_minor ? major : minor;
  }
};

// Blocks of filter rows in a tile: fewer than kBlocks in the last one.
template <int kBlocks>
__device__ __forceinline__ int BlocksOf(const WgradTiles& tiles,
                                        const TilePlace& place) {
  return min(kBlocks, tiles.taps * tiles.channel_blocks - place.m * kBlocks);
}

// kTransposed: a warpgroup has 64 output channels by all filter rows of the
// tile, in place of filter rows by all output channels. The longer side should
// be the one that all share: each warpgroup reads it once for 64 of the other.
// kGroups: consumer warpgroups.
template <typename T_, int kM_, int kN_, int kStages_, bool kTransposed_,
          int kGroups_ = kConsumers, bool kPair_ = false,
          int kWidth_ = kOneGroup>
struct WgradConfig {
  using T = T_;
  // Whether blocks may copy for each other.
  static constexpr bool kPair = kPair_;
  // The same for AddWgradPartials, to which stages and pairs are nothing.
  using Layout =
      WgradConfig<T_, kM_, kN_, 1, kTransposed_, kGroups_, false, kWidth_>;
  static constexpr int kWidth = kWidth_;  // see group_width.h
  static constexpr int kM = kM_, kN = kN_, kStages = kStages_;
  static constexpr bool kTransposed = kTransposed_;
  static constexpr int kBlocks = kM / 64;  // of filter rows
  static constexpr int kXBytes = kBlocks * kBoxBytes;
  static constexpr int kStageBytes = kXBytes + kN / 64 * kBoxBytes;
  static constexpr bool kSmall = kM * kN <= kSmallTile;
  // Where a cluster's blocks, or warpgroups, put what others add.
  static constexpr int kSumBytes = kSmall ? kM * kN * 4 : 0;
  static constexpr int kMaxCluster = kSmall ? 8 : 2;
  static constexpr bool kWhole = !kSmall;  // PartialWalk's
  // Transposed sums go through it, of tiles before a block's last.
  static constexpr int kRowBytes = kTransposed ? kGroups_ * kRowsBytes : 0;
  static constexpr int kSharedBytes =
      kStages * kStageBytes + kSumBytes + kRowBytes + 1024;
  static constexpr int kIssuers = 4;
  static constexpr int kGroups = kGroups_;
  // Two warpgroups that have the same rows take stages in turns, each from a
  // ring of its own, and then half of the columns each: one alone would leave
  // the tensor cores waiting for its operands.
  static constexpr int kRings = kM == 64 ? kGroups : 1;
  static constexpr int kRingStages = kStages / kRings;
  // A warpgroup's: blocks of 64 rows, and columns.
  static constexpr int kRows =
      kRings > 1 ? 1 : (kTransposed ? kN : kM) / 64 / kGroups;
  static constexpr int kMultiplied = kTransposed ? kM : kN;  // columns
  static constexpr int kColumns = kMultiplied / kRings;
  static constexpr int kColumnQuads = kColumns / 8;
  static constexpr int kQuads = kRows * kColumnQuads;  // of a thread
  static constexpr int kConsumed = kGroups * kWarpgroup;
  static constexpr int kThreads = kConsumed + kWarpgroup;
  // Of three warpgroups: 32 x 128 + 160 x 384 registers are what an SM has.
  static constexpr int kProducerRegisters =
      kGroups == 3 ? 32 : hopper::kProducerRegisters;
  static constexpr int kConsumerRegisters =
      kGroups == 3 ? 160 : hopper::kConsumerRegisters;
  // Whether a last step of few pixels is one of its own; see wgrad_problem.h.
  static constexpr bool kRest = kGroups > 1;
  // Small tiles share an SM.
  static constexpr int kResident =
      kGroups == 1 && kSharedBytes < 113 << 10 ? 2 : 1;

  // Of the product's 64 x 64 blocks that a thread has parts of: rows, columns.
  __device__ static int Row(int block, int thread) {
    if (kRings > 1) return 0;
    return thread / kWarpgroup * kRows + block / (kColumns / 64);
  }
  __device__ static int Column(int block, int thread) {
    const int first = kRings > 1 ? thread / kWarpgroup * (kColumns / 64) : 0;
    return first + block % (kColumns / 64);
  }
  // Its filter rows, in the tile.
  __device__ static int FilterBlock(int block, int thread) {
    return kTransposed ? Column(block, thread) : Row(block, thread);
  }

  __device__ static bool Has(const WgradTiles& tiles, int tile, int block,
                             int thread) {
    return FilterBlock(block, thread) <
           BlocksOf<kBlocks>(tiles, TilePlace(tiles, tile, kWidth));
  }

  __device__ static BlockOrigin Origin(const WgradTiles& tiles, int tile,
                                       int block, int thread) {
    const TilePlace at(tiles, tile, kWidth);
    const int rows = at.m * kBlocks + FilterBlock(block, thread);
    const int tap = tiles.by_channel_blocks.Divide(rows);
    const int column = kTransposed ? Row(block, thread) : Column(block, thread);
    const int first = at.unit * tiles.group_outputs;
    return {tap, (rows - tap * tiles.channel_blocks) * 64,
            first + at.n * kN + column * 64,
            min(tiles.K, first + tiles.group_outputs)};
  }
};

template <typename Config>
struct WgradBarriers {
  RingBarriers<Config::kRingStages> rings[Config::kRings];
  uint64_t arrived;  // sums of the cluster's blocks

  // By one thread.
  __device__ void Init() {
    for (auto& ring : rings) {
      ring.Init(
          1, (Config::kPair ? 2 : 1) * Config::kConsumed / Config::kRings / 32);
    }
    BarrierInit(SharedAddress(&arrived), 1);
    FenceBarrierInit();
    BarrierArriveExpect(SharedAddress(&arrived), Config::kSumBytes);
  }
};

// Issuers, one a warp, take the stages in turns: to work out where a step's
// pixels are takes one of them longer than to multiply a small tile. The whole
// warp walks, so that what it works out is known to be the same in all lanes.
// set_up() waits for the barriers to be set up.
template <typename Config, bool kVolumes, typename SetUp>
__device__ __forceinline__ void IssueWgradCopies(
    const WgradProblem& problem, int issuer, uint32_t ring,
    WgradBarriers<Config>& all_barriers, SetUp set_up) {
  // Else an issuer could be two rounds of the ring ahead of what has been given
  // back, which a barrier's phase cannot tell from none.
  static_assert(Config::kStages >= Config::kIssuers);
  auto& barriers = all_barriers.rings[issuer % Config::kRings];
  ring += issuer % Config::kRings * Config::kRingStages * Config::kStageBytes;
  RingPosition<Config::kRingStages> at;
  at.Skip(issuer / Config::kRings);
  // Of a pair: which one this is, and both.
  const int member = blockIdx.x % 2;
  const int rank = blockIdx.x % (2 * problem.cluster);
  const auto both = static_cast<uint16_t>(3 << (rank & ~1));
  int next = issuer;  // of the partial's steps
  bool is_set_up = false;
  PartialWalk<Config::kWhole> walk(problem, ShareOf<Config::kPair>(problem));
  for (WgradPartial partial; walk.Next(&partial);) {
    const TilePlace place(problem, partial.tile, Config::kWidth);
    const int channel =
        place.unit * problem.group_outputs + place.n * Config::kN;
    // Boxes past the last tap or channel are left out, and what they would have
    // given is not written. (To have them filled with zeros takes several times
    // as long as to load them.)
    const int blocks = BlocksOf<Config::kBlocks>(problem, place);
    const int channels =
        min(Config::kN, problem.group_outputs - place.n * Config::kN);
    const int bytes = (blocks + (channels + 63) / 64) * kBoxBytes;
    int c[Config::kBlocks];
    TapOffset offset[Config::kBlocks];
#pragma unroll
    for (int m = 0; m < Config::kBlocks; ++m) {
      const int block = place.m * Config::kBlocks + m;
      const int tap = problem.by_channel_blocks.Divide(block);
      const int r = problem.by_filter_width.Divide(tap);
      c[m] = place.unit * problem.group_inputs +
             (block - tap * problem.channel_blocks) * 64;
      offset[m] = OffsetOfRow<kVolumes>(problem, r);
      offset[m].w = (tap - r * problem.filter_width) * problem.dilation_w;
    }
    // Of each round of the classes, the partial has so many steps.
    const int width = partial.end - partial.begin;
    int whole = Config::kIssuers, turns = next;
    if (width > 1) {  // divisions take their time
      whole /= width;
      turns /= width;
    }
    const int rounds = whole * problem.classes;
    const int rest = Config::kIssuers - whole * width;
    int round = turns * problem.classes;  // its first step
    int step = partial.begin + next - turns * width;
    const int steps = partial.Steps(problem);
    if (!is_set_up) set_up();
    is_set_up = true;
    const bool has_rest = Config::kRest && partial.HasRest(problem);
    for (; next < steps; next += Config::kIssuers) {
      const uint32_t pixel = (round + step) * 64u;
      uint32_t image = pixel;
      const int col = static_cast<int>(TakeDigit(problem.by_cols, image));
      const int row = static_cast<int>(TakeDigit(problem.by_rows, image));
      const PixelPlace base = PlaceInX<kVolumes>(
          problem, PlaceInDy<kVolumes>(problem, col, row, image));
      const bool is_rest = has_rest && next == steps - 1;
      const CUtensorMap& x_map = is_rest ? problem.x_rest : problem.x;
      const CUtensorMap& dy_map = is_rest ? problem.dy_rest : problem.dy;
      const uint32_t full = SharedAddress(&barriers.full[at.stage]);
      const uint32_t x = ring + at.stage * Config::kStageBytes;
      BarrierWait(SharedAddress(&barriers.empty[at.stage]), at.round ^ 1);
      if (ElectOne()) {
        BarrierArriveExpect(full, is_rest ? bytes / (64 / kRestPixels) : bytes);
#pragma unroll
        for (int m = 0; m < Config::kBlocks; ++m) {
          if (m >= blocks) continue;
          const uint32_t to = x + m * kBoxBytes;
          if (Config::kPair && problem.shares_x) {
            if (m % 2 != member) continue;
            MulticastTap(kVolumes, to, x_map, full, c[m], base, offset[m],
                         both);
          } else {
            LoadTap(kVolumes, to, x_map, full, c[m], base, offset[m]);
          }
        }
#pragma unroll
        for (int n = 0; n < Config::kN / 64; ++n) {
          if (n * 64 >= channels) continue;
          const uint32_t to = x + Config::kXBytes + n * kBoxBytes;
          if (Config::kPair && !problem.shares_x) {
            if (n % 2 != member) continue;
            MulticastTile2(to, dy_map, full, channel + n * 64, pixel, both);
          } else {
            LoadTile2(to, dy_map, full, channel + n * 64, pixel);
          }
        }
      }
      at.Skip(Config::kIssuers / Config::kRings);
      step += rest;
      round += rounds;
      if (step >= partial.end) {
        step -= width;
        round += problem.classes;
      }
    }
    next -= steps;
  }
}

template <typename Config>
__device__ __forceinline__ void ConsumeWgrad(
    const WgradProblem& problem, uint32_t ring,
    WgradBarriers<Config>& all_barriers) {
  constexpr int kRings = Config::kRings;
  const int thread = threadIdx.x - kWarpgroup;
  // The same in all lanes, and known to be.
  const int group = __shfl_sync(~0u, thread / kWarpgroup, 0);
  auto& barriers = all_barriers.rings[group % kRings];
  const uint32_t own = kRings > 1 ? 0 : group * Config::kRows * kBoxBytes;
  const uint32_t x =
      ring + group % kRings * Config::kRingStages * Config::kStageBytes;
  const uint32_t dy = x + Config::kXBytes;
  const uint32_t a = (Config::kTransposed ? dy : x) + own;
  const uint32_t b = Config::kTransposed ? x : dy;
  RingPosition<Config::kRingStages> at;
  const int share = ShareOf<Config::kPair>(problem);
  int refills = 0;  // stages that will be filled again
  // Lanes 0 and 1 of a pair's warps, each at one of the two. Nobody arrives for
  // stages that stay empty: the other block may have ended.
  const int lane = threadIdx.x % 32;
  const int at_block = (blockIdx.x % (2 * problem.cluster) & ~1) + lane % 2;
  auto release = [&, alone = ReleaseOwn()](uint32_t empty) {
    if constexpr (Config::kPair) {
      if (refills-- > 0 && lane < 2) BarrierArriveAt(empty, at_block);
    } else {
      alone(empty);
    }
  };
  const uint32_t sums = ring + Config::kStages * Config::kStageBytes;
  int turn = group;  // of the partial's steps, the first that is this group's
  PartialWalk<Config::kWhole> walk(problem, share);
  for (WgradPartial partial; walk.Next(&partial);) {
    const int all_steps = partial.Steps(problem);
    int steps = all_steps;
    const int first = turn;
    if constexpr (kRings > 1) {
      steps = (all_steps - turn + 1) / 2;
      turn = (turn + all_steps) & 1;
    }
    refills = steps - Config::kRingStages;
    if (Config::kWhole) refills += walk.whole() * problem.steps;
    bool has_rest = Config::kRest && partial.HasRest(problem);
    if (kRings > 1) has_rest &= (all_steps + first) % 2 != 0;
    float acc[Config::kRows][Config::kMultiplied / 2];
    MultiplyStages<typename Config::T, Contiguous::kRows, Contiguous::kRows>(
        acc, steps - has_rest, a, b, Config::kStageBytes, barriers, at,
        Nothing(), release);
    if (has_rest) {
      BarrierWait(SharedAddress(&barriers.full[at.stage]), at.round);
      const uint64_t rest_a = Descriptor(a + at.stage * Config::kStageBytes);
      const uint64_t rest_b = Descriptor(b + at.stage * Config::kStageBytes);
      WgmmaFence();
#pragma unroll
      for (int m = 0; m < Config::kRows; ++m) {
        Wgmma<typename Config::T, Contiguous::kRows, Contiguous::kRows,
              Config::kMultiplied>(acc[m], rest_a + m * (kBoxBytes >> 4),
                                   rest_b);
      }
      WgmmaCommit();
      WgmmaWait<0>();
      release(SharedAddress(&barriers.empty[at.stage]));
      at.Advance();
    }
    if constexpr (kRings > 1) {
      AddHalves<Config>(acc[0], group, thread % kWarpgroup,
                        problem.cluster > 1 ? ring : sums);
    }
    auto quad_of = [&](int quad) {
      const float* v =
          &acc[quad / Config::kColumnQuads][quad % Config::kColumnQuads * 4];
      return make_float4(v[0], v[1], v[2], v[3]);
    };
    if (problem.cluster > 1) {
      if constexpr (Config::kSmall) {
        if (!Config::kPair) ClusterWait();  // all have set up their barriers
        ExchangeQuads<Config>(problem, share, partial.tile, thread, sums,
                              SharedAddress(&all_barriers.arrived), quad_of);
      } else {
        AddInTwo<Config>(problem, share, partial.tile, thread, ring, quad_of);
      }
    } else {
      WritePartial<Config>(problem, share, partial, walk.whole() == 0, thread,
                           ring, quad_of, Config::kTransposed ? sums : 0);
    }
  }
}

template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kResident)
    WgradKernel(const __grid_constant__ WgradProblem problem) {
  extern __shared__ uint8_t shared[];
  __shared__ WgradBarriers<Config> barriers;
  const uint32_t ring = (SharedAddress(shared) + 1023) & ~1023u;
  if (threadIdx.x == 32) {
    PrefetchMap(problem.x);
    PrefetchMap(problem.dy);
  }
  if (Config::kRest && threadIdx.x == 64 && problem.has_rest) {
    PrefetchMap(problem.x_rest);
    PrefetchMap(problem.dy_rest);
  }
  if (threadIdx.x == 0) barriers.Init();
  auto set_up = [&] {
    if constexpr (Config::kPair) {
      ClusterBarrier</*kWritten=*/false>();  // Init() has its own fence
    } else {
      __syncthreads();
      if (Config::kSumBytes > 0 && problem.cluster > 1) ClusterArrive();
    }
  };
  if (threadIdx.x < kWarpgroup) {
    if constexpr (Config::kGroups > 1)
      GiveRegisters<Config::kProducerRegisters>();
    // The same in all lanes, and known to be.
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    ByAxes<Config>(problem, [&](auto volumes) {
      IssueWgradCopies<Config, decltype(volumes)::value>(problem, warp, ring,
                                                         barriers, set_up);
    });
    // Earlier, short launches take longer.
    LaunchDependents();
  } else {
    if constexpr (Config::kGroups > 1)
      TakeRegisters<Config::kConsumerRegisters>();
    set_up();
    ConsumeWgrad<Config>(problem, ring, barriers);
  }
}

}  // namespace jax_convbatch::hopper
