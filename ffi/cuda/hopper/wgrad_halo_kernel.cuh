// wgrad of 3x3 filters at stride 1, with x in shared memory once for all taps.
//
// Pixels lie in shared memory with the images innermost: [column, image,
// channel], 16 images (or 8) at a time. A tap's shift by a column is then a
// shift by whole groups of 8 rows of 128 bytes, which leaves the swizzle alone:
// the three taps of a filter row are one operand of 3 x 64 columns whose boxes
// begin one pixel after another, and so overlap. Padding is filled in by the
// copy engine.
//
// A stage holds one row of a strip of x (strip + 2 pixels) and the row of dy
// that lies two rows up: with the two stages before it, all that this row of dy
// multiplies. Where the filter is dilated, so is the pixel's distance from tap
// to tap, and the rows that follow each other are those that taps connect:
// every second, then the others. Warpgroup r multiplies with filter row r. dw
// is formed transposed (output channels by taps x input channels): for each 16
// pixels dy is read once, and 192 columns of x.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_WGRAD_HALO_KERNEL_CUH_
#define JAX_CONVBATCH_CUDA_HOPPER_WGRAD_HALO_KERNEL_CUH_

#include "cuda/dependent_launch.cuh"
#include "cuda/hopper/pipeline.cuh"
#include "cuda/hopper/wgrad_clusters.cuh"
#include "cuda/hopper/wgrad_tiling.h"

namespace jax_convbatch::hopper {

template <int kWidth>
__device__ __forceinline__ BlockOrigin HaloOrigin(const WgradTiles& tiles,
                                                  int tile, int tap) {
  const int c = tile / tiles.n_tiles, n = tile % tiles.n_tiles;
  if constexpr (kWidth == kOneGroup) return {tap, c * 64, n * 64, tiles.K};
  const int group = c / tiles.group_blocks, first = group * tiles.group_outputs;
  return {tap, (c - group * tiles.group_blocks) * 64, first + n * 64,
          first + tiles.group_outputs};
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
template <typename T_, int kMultiplications_, int kWidth_ = kOneGroup>
struct HaloConfig {
  using T = T_;
  using Layout = HaloConfig<T_, 7, kWidth_>;  // AddPieces'
  static constexpr int kWidth = kWidth_;
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
    return HaloOrigin<kWidth>(tiles, tile, thread / kWarpgroup * kTaps + block);
  }
};

// Rows of one strip: `count` of dy, from `row` on, `dilation` apart.
struct HaloRun {
  int image, col, row, count;
};

// The run that begins at `step` of a tile, of a piece that ends at `end`.
__device__ __forceinline__ HaloRun RunAt(const HaloProblem& problem, int step,
                                         int end) {
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
  return {group * problem.images,
          (strip - group * problem.strips) * problem.strip,
          of_class * problem.dilation + row_class + (late < 0 ? 0 : whole),
          min(size - of_class, end - step)};
}

// A position in a ring of as many stages as there is room for.
struct HaloRing {
  int stages, stage = 0;
  uint32_t round = 0;

  __device__ void Advance() {
    if (++stage == stages) {
      stage = 0;
      round ^= 1;
    }
  }
  // The stage `back` before this one.
  __device__ int Before(int back) const {
    return stage >= back ? stage - back : stage - back + stages;
  }
};

using HaloBarriers = RingBarriers<HaloTiling::kMaxStages>;

// By one thread.
template <typename Config>
__device__ __forceinline__ void IssueHaloCopies(const HaloProblem& problem,
                                                uint32_t ring,
                                                HaloBarriers& barriers) {
  HaloRing at{problem.stages};
  PieceWalk<false> walk(problem, blockIdx.x);
  for (WgradPiece piece; walk.Next(&piece);) {
    const int c = HaloInput<Config::kWidth>(problem, piece.tile);
    const int k = Config::Origin(problem, piece.tile, 0, 0).k;
    for (int step = piece.begin; step < piece.end;) {
      const HaloRun run = RunAt(problem, step, piece.end);
      step += run.count;
      for (int row = 0; row < run.count + 2; ++row) {
        const uint32_t full = SharedAddress(&barriers.full[at.stage]);
        const uint32_t x =
            ring + at.stage * (problem.x_bytes + problem.dy_bytes);
        const int h = run.row + row * problem.dilation - problem.pad_h;
        // Rows of padding are neither loaded nor multiplied.
        const bool inside = unsigned(h) < unsigned(problem.height);
        BarrierWait(SharedAddress(&barriers.empty[at.stage]), at.round ^ 1);
        BarrierArriveExpect(
            full, inside * problem.x_bytes + (row >= 2) * problem.dy_bytes);
        if (inside) {
          LoadTile4(x, problem.x, full, c, run.image, run.col - problem.pad_w,
                    h);
        }
        if (row >= 2) {
          LoadTile4(x + problem.x_bytes, problem.dy, full, k, run.image,
                    run.col, run.row + (row - 2) * problem.dilation);
        }
        at.Advance();
      }
    }
  }
}

template <typename Config>
__device__ __forceinline__ void ConsumeHalo(const HaloProblem& problem,
                                            uint32_t ring,
                                            HaloBarriers& barriers) {
  const int thread = threadIdx.x - kWarpgroup;
  // The same in all lanes, and known to be.
  const int filter_row = __shfl_sync(~0u, thread / kWarpgroup, 0);
  const bool signals = threadIdx.x % 32 == 0;
  const int stage_bytes = problem.x_bytes + problem.dy_bytes;
  HaloRing at{problem.stages};
  int passed = 0;  // stages that are not given back, up to 3
  PieceWalk<false> walk(problem, blockIdx.x);
  for (WgradPiece piece; walk.Next(&piece);) {
    float acc[Config::kColumns / 2];
#pragma unroll
    for (int j = 0; j < Config::kColumns / 2; ++j) acc[j] = 0.0f;
    for (int step = piece.begin; step < piece.end;) {
      const HaloRun run = RunAt(problem, step, piece.end);
      step += run.count;
      for (int row = 0; row < run.count + 2; ++row) {
        BarrierWait(SharedAddress(&barriers.full[at.stage]), at.round);
        const int h =
            run.row + (row - 2 + filter_row) * problem.dilation - problem.pad_h;
        // What was multiplied up to the stage before has been read in the end.
        if (row >= 2 && unsigned(h) < unsigned(problem.height)) {
          const uint64_t dy = StridedDescriptor(
              ring + at.stage * stage_bytes + problem.x_bytes, kBoxBytes);
          const uint64_t x =
              StridedDescriptor(ring + at.Before(2 - filter_row) * stage_bytes,
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
        if (passed < 3) {
          ++passed;
        } else if (signals) {
          BarrierArrive(SharedAddress(&barriers.empty[at.Before(3)]));
        }
        at.Advance();
      }
    }
    WgmmaWait<0>();
    auto quad_of = [&](int quad) {
      const float* a = &acc[quad * 4];
      return make_float4(a[0], a[1], a[2], a[3]);
    };
    if (problem.cluster > 1) {
      AddInTwo<Config>(problem, blockIdx.x, piece.tile, thread, ring, quad_of);
    } else {
      WritePiece<Config>(problem, blockIdx.x, piece, true, thread, ring,
                         quad_of);
    }
  }
}

template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    WgradHaloKernel(const __grid_constant__ HaloProblem problem) {
  extern __shared__ uint8_t shared[];
  __shared__ HaloBarriers barriers;
  const uint32_t ring = (SharedAddress(shared) + 1023) & ~1023u;
  if (threadIdx.x == 32) {
    PrefetchMap(problem.x);
    PrefetchMap(problem.dy);
  }
  if (threadIdx.x == 0) barriers.Init(1, Config::kConsumed / 32);
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    GiveRegisters<Config::kProducerRegisters>();
    if (threadIdx.x == 0) {
      IssueHaloCopies<Config>(problem, ring, barriers);
      LaunchDependents();
    }
  } else {
    TakeRegisters<Config::kConsumerRegisters>();
    ConsumeHalo<Config>(problem, ring, barriers);
  }
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_WGRAD_HALO_KERNEL_CUH_
