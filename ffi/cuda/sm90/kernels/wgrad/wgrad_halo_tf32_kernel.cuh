// SPDX-License-Identifier: Apache-2.0
// wgrad of 3x3 filters at stride 1 in f32, multiplied as TF32, with x in shared
// memory once for all taps: wgrad_halo_kernel.cuh tells how.
//
// The multiplier takes TF32 from shared memory only with the reduction, 16
// images at one place, contiguous. dy is the left operand and goes through
// registers, loaded across its rows. x is transposed in place by three warps: a
// box of 16 images x 32 channels becomes 32 rows of 64 bytes. A tap is then a
// shift by two boxes, and the three taps of a filter row are 192 rows.
//
// The order of images within a row and of channels within a box is the one that
// keeps every access to shared memory free of conflicts; all sides agree on it.
#pragma once

#include "cuda/common/dependent_launch.cuh"
#include "cuda/sm90/arch/tensor_copies_5d.cuh"
#include "cuda/sm90/kernels/wgrad/wgrad_halo_kernel.cuh"
#include "cuda/sm90/mainloop/tf32_fragments.cuh"

namespace jax_convbatch::hopper {

// Strips of kStrip pixels. kWidth: see group_width.h.
template <int kStrip_, int kWidth_ = kOneGroup>
struct HaloTf32Config {
  using T = float;
  static constexpr int kWidth = kWidth_;
  static constexpr int kStrip = kStrip_;
  static constexpr int kTaps = 3;
  static constexpr int kThreads = (kTaps + 1) * kWarpgroup;
  // 56 x 128 + 152 x 384 registers: what an SM has.
  static constexpr int kProducerRegisters = 56;
  static constexpr int kConsumerRegisters = 152;

  static constexpr int kImages = 16;
  static constexpr int kUnitBytes = kImages * 128;  // 32 channels of a place
  static constexpr int kPlaceBytes = 2 * kUnitBytes;
  static constexpr int kXBytes = (kStrip + 2) * kPlaceBytes;
  static constexpr int kDyBytes = kStrip * kPlaceBytes;
  // Three rows of x are multiplied while the next comes.
  static constexpr int kXStages = 4, kDyStages = 2;
  static constexpr int kSharedBytes =
      kXStages * kXBytes + kDyStages * kDyBytes + 1024;

  static constexpr int kColumns = kTaps * 64;
  static constexpr int kQuads = kColumns / 8;  // of a thread
  static constexpr int kConsumed = kTaps * kWarpgroup;
  static constexpr bool kTransposed = true;

  __device__ static bool Has(const WgradTiles&, int, int, int) { return true; }

  __device__ static BlockOrigin Origin(const WgradTiles& tiles, int tile,
                                       int block, int thread) {
    return HaloOrigin<kWidth>(tiles, tile, thread / kWarpgroup * kTaps + block);
  }
};

template <typename Config>
struct HaloTf32Barriers {
  static constexpr int kTransposers = 3;  // warps

  // x is loaded once its copy is there, full once it is transposed.
  uint64_t loaded[Config::kXStages];
  RingBarriers<Config::kXStages> x;
  RingBarriers<Config::kDyStages> dy;

  __device__ void Init() {  // by one thread
    for (uint64_t& barrier : loaded) BarrierInit(SharedAddress(&barrier), 1);
    x.Init(kTransposers, Config::kConsumed / 32);
    dy.Init(1, Config::kConsumed / 32);
  }
};

// Image 0 to 15 of a box is element `j` of chunk `chunk` of its rows of 64
// bytes.
__device__ __forceinline__ int HaloImage(int chunk, int j) {
  return 2 * (chunk ^ j) + j % 2 + j / 2 * 8;
}

// A run of rows of dy, and the rows of x that it multiplies: [begin, end),
// without padding.
struct HaloTf32Run : HaloRun {
  int begin, end;

  __device__ HaloTf32Run(const HaloProblem& problem, const HaloRun& run)
      : HaloRun(run),
        begin(max(0, run.row - problem.pad_h)),
        end(max(begin,
                min(problem.height, run.row + run.count + 2 - problem.pad_h))) {
  }

  // How far row `number` of dy reads x.
  __device__ int Reach(const HaloProblem& problem, int number) const {
    return min(end, row + number + 3 - problem.pad_h);
  }
};

// Calls visit(partial, run) for all that a block multiplies.
template <typename Visit>
__device__ __forceinline__ void ForHaloRuns(const HaloProblem& problem,
                                            Visit visit) {
  PartialWalk<false> walk(problem, blockIdx.x);
  for (WgradPartial partial; walk.Next(&partial);) {
    for (int step = partial.begin; step < partial.end;) {
      const HaloTf32Run run(problem, RunAt</*k3d=*/false>(problem, partial.tile,
                                                          step, partial.end));
      step += run.count;
      visit(partial, run);
    }
  }
}

// By one thread.
template <typename Config>
__device__ __forceinline__ void IssueHaloTf32Copies(
    const HaloProblem& problem, uint32_t ring,
    HaloTf32Barriers<Config>& barriers) {
  const uint32_t dy_ring = ring + Config::kXStages * Config::kXBytes;
  RingPosition<Config::kXStages> at;
  RingPosition<Config::kDyStages> dy_at;
  ForHaloRuns(problem, [&](const WgradPartial& partial,
                           const HaloTf32Run& run) {
    const int c = partial.tile / problem.n_tiles * 2;
    const int k = Config::Origin(problem, partial.tile, 0, 0).k / kTf32Block;
    int row = run.begin;
    for (int number = 0; number < run.count; ++number) {
      for (; row < run.Reach(problem, number); ++row) {
        const uint32_t loaded = SharedAddress(&barriers.loaded[at.stage]);
        BarrierWait(SharedAddress(&barriers.x.empty[at.stage]), at.round ^ 1);
        BarrierArriveExpect(loaded, Config::kXBytes);
        LoadTile5(ring + at.stage * Config::kXBytes, problem.x, loaded, 0,
                  run.image, c, run.col - problem.pad_w, row);
        at.Advance();
      }
      const uint32_t full = SharedAddress(&barriers.dy.full[dy_at.stage]);
      BarrierWait(SharedAddress(&barriers.dy.empty[dy_at.stage]),
                  dy_at.round ^ 1);
      BarrierArriveExpect(full, Config::kDyBytes);
      LoadTile5(dy_ring + dy_at.stage * Config::kDyBytes, problem.dy, full, 0,
                run.image, k, run.col, run.row + number);
      dy_at.Advance();
    }
  });
}

// By warps 1 to 3. A lane turns blocks of 4 images x 4 channels: row q + 8 j of
// a box holds channel 4 q + j.
template <typename Config>
__device__ __forceinline__ void TransposeX(const HaloProblem& problem,
                                           uint32_t ring,
                                           HaloTf32Barriers<Config>& barriers) {
  constexpr int kWarps = HaloTf32Barriers<Config>::kTransposers;
  const int warp = threadIdx.x / 32 - 1;
  const int lane = threadIdx.x % 32;
  const int to = lane % 4, from = lane / 4;
  uint32_t read[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int image = HaloImage(to, j);
    read[j] = image * 128 + ((from ^ image % 8) << 4);
  }
  const uint32_t write = from * 64 + ((to ^ from / 2) << 4);
  RingPosition<Config::kXStages> at;
  ForHaloRuns(problem, [&](const WgradPartial&, const HaloTf32Run& run) {
    for (int i = run.begin; i < run.end; ++i) {
      BarrierWait(SharedAddress(&barriers.loaded[at.stage]), at.round);
      const uint32_t row = ring + at.stage * Config::kXBytes;
#pragma unroll 1
      for (int unit = warp; unit < (Config::kStrip + 2) * 2; unit += kWarps) {
        const uint32_t box = row + unit * Config::kUnitBytes;
        float4 v[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) v[j] = LoadShared4(box + read[j]);
        __syncwarp();
        const uint32_t rows = box + write;
        StoreShared4(rows, make_float4(v[0].x, v[1].x, v[2].x, v[3].x));
        StoreShared4(rows + 512, make_float4(v[0].y, v[1].y, v[2].y, v[3].y));
        StoreShared4(rows + 1024, make_float4(v[0].z, v[1].z, v[2].z, v[3].z));
        StoreShared4(rows + 1536, make_float4(v[0].w, v[1].w, v[2].w, v[3].w));
      }
      FenceAsyncProxy();
      __syncwarp();
      if (lane == 0) BarrierArrive(SharedAddress(&barriers.x.full[at.stage]));
      at.Advance();
    }
  });
}

// What a warpgroup's multiplications of a place take of dy: 64 output channels
// of 16 images, 8 at a time.
class HaloFragments {
 public:
  __device__ HaloFragments() {
    const FragmentLane<1> lane(threadIdx.x);
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int image = HaloImage(i, t);
      offset_[i] = lane.box * 2048 + image * 128 +
                   ((lane.chunk ^ image % 8) << 4) + lane.half * 8;
    }
  }

  __device__ __forceinline__ void Load(uint32_t place,
                                       uint32_t (&a)[2][4]) const {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const float2 low = LoadShared2(place + offset_[2 * k]);
      const float2 high = LoadShared2(place + offset_[2 * k + 1]);
      a[k][0] = __float_as_uint(low.x), a[k][1] = __float_as_uint(low.y);
      a[k][2] = __float_as_uint(high.x), a[k][3] = __float_as_uint(high.y);
    }
  }

 private:
  uint32_t offset_[4];
};

// Of rows of 64 bytes, swizzled by as many.
__device__ __forceinline__ uint64_t Descriptor64(uint32_t address) {
  return uint64_t{512 >> 4} << 32 | uint64_t{2} << 62 |
         (address & 0x3FFFF) >> 4;
}

// acc += what a row of dy and the row of x for a warpgroup's filter row give.
template <typename Config>
__device__ __forceinline__ void MultiplyHaloRow(
    float (&acc)[Config::kColumns / 2], const HaloFragments& fragments,
    uint32_t dy, uint32_t x) {
  const uint64_t columns = Descriptor64(x);
  uint32_t a[2][2][4];
  fragments.Load(dy, a[0]);
#pragma unroll
  for (int place = 0; place < Config::kStrip; ++place) {
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      WgmmaTf32Columns<192>(
          acc, a[place % 2][k],
          columns + (place * Config::kPlaceBytes + k * 32) / 16);
    }
    WgmmaCommit();
    if (place + 1 == Config::kStrip) {
      WgmmaWait<0>();
    } else {
      WgmmaWait<1>();
      fragments.Load(dy + (place + 1) * Config::kPlaceBytes,
                     a[(place + 1) % 2]);
    }
  }
}

template <typename Config>
__device__ __forceinline__ void ConsumeHaloTf32(
    const HaloProblem& problem, uint32_t ring,
    HaloTf32Barriers<Config>& barriers) {
  const int thread = threadIdx.x - kWarpgroup;
  // The same in all lanes, and known to be.
  const int filter_row = __shfl_sync(~0u, thread / kWarpgroup, 0);
  const bool signals = threadIdx.x % 32 == 0;
  const uint32_t dy_ring = ring + Config::kXStages * Config::kXBytes;
  const HaloFragments fragments;
  RingPosition<Config::kXStages> at;
  RingPosition<Config::kDyStages> dy_at;
  int first = 0;  // where a run's first row of x is in the ring
  PartialWalk<false> walk(problem, blockIdx.x);
  for (WgradPartial partial; walk.Next(&partial);) {
    float acc[Config::kColumns / 2];
#pragma unroll
    for (int j = 0; j < Config::kColumns / 2; ++j) acc[j] = 0.0f;
    for (int step = partial.begin; step < partial.end;) {
      const HaloTf32Run run(problem, RunAt</*k3d=*/false>(problem, partial.tile,
                                                          step, partial.end));
      step += run.count;
      int there = run.begin, released = run.begin;  // rows of x so far
      auto stage_of = [&](int row) {
        return (first + row - run.begin) % Config::kXStages;
      };
      for (int number = 0; number < run.count; ++number) {
        for (; there < run.Reach(problem, number); ++there) {
          BarrierWait(SharedAddress(&barriers.x.full[at.stage]), at.round);
          at.Advance();
        }
        BarrierWait(SharedAddress(&barriers.dy.full[dy_at.stage]), dy_at.round);
        const int row = run.row + number + filter_row - problem.pad_h;
        if (row >= run.begin && row < run.end) {
          MultiplyHaloRow<Config>(acc, fragments,
                                  dy_ring + dy_at.stage * Config::kDyBytes,
                                  ring + stage_of(row) * Config::kXBytes);
        }
        if (signals) {
          BarrierArrive(SharedAddress(&barriers.dy.empty[dy_at.stage]));
        }
        dy_at.Advance();
        // The next row of dy reads on from here.
        const int next =
            number + 1 == run.count
                ? run.end
                : min(run.end, run.row + number + 1 - problem.pad_h);
        for (; released < next; ++released) {
          if (signals) {
            BarrierArrive(SharedAddress(&barriers.x.empty[stage_of(released)]));
          }
        }
      }
      first = stage_of(run.end);
    }
    WritePartial<Config>(problem, blockIdx.x, partial, false, thread, ring,
                         [&](int quad) {
                           const float* a = &acc[quad * 4];
                           return make_float4(a[0], a[2], a[1], a[3]);
                         });
  }
}

template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    WgradHaloTf32Kernel(const __grid_constant__ HaloProblem problem) {
  extern __shared__ uint8_t shared[];
  __shared__ HaloTf32Barriers<Config> barriers;
  const uint32_t ring = (SharedAddress(shared) + 1023) & ~1023u;
  if (threadIdx.x == 32) {
    PrefetchMap(problem.x);
    PrefetchMap(problem.dy);
  }
  if (threadIdx.x == 0) barriers.Init();
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    GiveRegisters<Config::kProducerRegisters>();
    if (threadIdx.x == 0) {
      IssueHaloTf32Copies(problem, ring, barriers);
      LaunchDependents();
    } else if (threadIdx.x >= 32) {
      TransposeX(problem, ring, barriers);
    }
  } else {
    TakeRegisters<Config::kConsumerRegisters>();
    ConsumeHaloTf32(problem, ring, barriers);
  }
}

}  // namespace jax_convbatch::hopper
