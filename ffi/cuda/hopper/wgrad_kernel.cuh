// wgrad: dw[tap, c, k] = sum over pixels of x[pixel + tap, c] dy[pixel, k].
//
// The same ring and the same warpgroups as conv_kernel.cuh, with both operands
// transposed by the multiplier: a stage holds 64 pixels of x (im2col) for each
// block of filter rows and of dy for each 64 output channels.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_WGRAD_KERNEL_CUH_
#define JAX_CONVBATCH_CUDA_HOPPER_WGRAD_KERNEL_CUH_

#include "cuda/hopper/pipeline.cuh"
#include "cuda/hopper/wgrad_problem.h"

namespace jax_convbatch::hopper {

template <typename T_, int kM_, int kN_, int kStages_>
struct WgradConfig {
  using T = T_;
  static constexpr int kM = kM_, kN = kN_, kStages = kStages_;
  static constexpr int kBlocks = kM / 64;             // of filter rows
  static constexpr int kRows = kBlocks / kConsumers;  // a warpgroup's
  static constexpr int kXBytes = kBlocks * kBoxBytes;
  static constexpr int kStageBytes = kXBytes + kN / 64 * kBoxBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes + 1024;
  static constexpr int kIssuers = kBlocks + kN / 64 < 4 ? kBlocks + kN / 64 : 4;
  // Of a piece: four accumulators of every consumer thread at a time.
  static constexpr int kQuads = kRows * kN / 8;
  static constexpr int kPieceFloats = kM * kN;
};

// One block's part of a tile: steps [begin, end).
struct WgradPiece {
  int tile, begin, end;
};

// The piece at `at` of the line, of a share that ends at `end`.
__device__ __forceinline__ WgradPiece PieceAt(const WgradProblem& problem,
                                              int64_t at, int64_t end) {
  const int tile = static_cast<int>(at / problem.steps);
  const int64_t first = int64_t{tile} * problem.steps;
  return {tile, static_cast<int>(at - first),
          static_cast<int>(min(end - first, int64_t{problem.steps}))};
}

// A block has at most two pieces of tiles that others share: its first, its
// last.
__device__ __forceinline__ int64_t PieceSlot(const WgradProblem& problem,
                                             int block, int tile) {
  return 2 * int64_t{block} +
         (tile != static_cast<int>(problem.Begin(block) / problem.steps));
}

// Where four accumulators of a consumer thread belong in dw: rows `row` and
// row + 8 of a block of filter rows, two columns each. A quad is 8 columns.
template <typename Config>
__device__ __forceinline__ void WriteQuad(const WgradProblem& problem, int tile,
                                          int quad, int thread, float4 v) {
  const int m = quad / (Config::kN / 8);
  const int warp = thread % kWarpgroup / 32;
  const int lane = thread % 32;
  const int block = tile / problem.n_tiles * Config::kBlocks +
                    thread / kWarpgroup * Config::kRows + m;
  const int tap = block / problem.channel_blocks;
  const int c =
      (block - tap * problem.channel_blocks) * 64 + warp * 16 + lane / 4;
  const int k = tile % problem.n_tiles * Config::kN +
                quad % (Config::kN / 8) * 8 + lane % 4 * 2;
  if (tap >= problem.taps || k >= problem.K) return;
  using T = typename Config::T;
  T* to = static_cast<T*>(problem.dw) +
          (int64_t{tap} * problem.C + c) * problem.K + k;
  if (c < problem.C) *reinterpret_cast<uint32_t*>(to) = Pack<T>(v.x, v.y);
  if (c + 8 < problem.C) {
    *reinterpret_cast<uint32_t*>(to + int64_t{8} * problem.K) =
        Pack<T>(v.z, v.w);
  }
}

// The boxes of a stage are shared out among the issuing threads, one a warp.
template <typename Config>
__device__ __forceinline__ void IssueWgradCopies(
    const WgradProblem& problem, int issuer, uint32_t ring,
    RingBarriers<Config::kStages>& barriers) {
  RingPosition<Config::kStages> at;
  const int64_t end = problem.Begin(blockIdx.x + 1);
  for (int64_t i = problem.Begin(blockIdx.x); i < end;) {
    const WgradPiece piece = PieceAt(problem, i, end);
    i += piece.end - piece.begin;
    const int channel = piece.tile % problem.n_tiles * Config::kN;
    // Boxes past the last tap or channel are left out, and what they would have
    // given is not written. (To have them filled with zeros takes several times
    // as long as to load them.)
    const int blocks = min(Config::kBlocks,
                           problem.taps * problem.channel_blocks -
                               piece.tile / problem.n_tiles * Config::kBlocks);
    const int channels = min(Config::kN, problem.K - channel);
    const int bytes = (blocks + (channels + 63) / 64) * kBoxBytes;
    int c[Config::kBlocks], offset_h[Config::kBlocks],
        offset_w[Config::kBlocks];
#pragma unroll
    for (int m = 0; m < Config::kBlocks; ++m) {
      const int block = piece.tile / problem.n_tiles * Config::kBlocks + m;
      const int tap = block / problem.channel_blocks;
      const int r = tap / problem.filter_width;
      c[m] = (block - tap * problem.channel_blocks) * 64;
      offset_h[m] = r * problem.dilation_h;
      offset_w[m] = (tap - r * problem.filter_width) * problem.dilation_w;
    }
    for (int step = piece.begin; step < piece.end; ++step) {
      const unsigned pixel = step * 64u;
      const unsigned row = pixel / unsigned(problem.cols);
      const unsigned image = row / unsigned(problem.rows);
      const int w =
          problem.base_w + int(pixel - row * problem.cols) * problem.step_w;
      const int h =
          problem.base_h + int(row - image * problem.rows) * problem.step_h;
      const uint32_t full = SharedAddress(&barriers.full[at.stage]);
      const uint32_t x = ring + at.stage * Config::kStageBytes;
      BarrierWait(SharedAddress(&barriers.empty[at.stage]), at.round ^ 1);
      // All arrive, boxes or not: who fell a round behind would wait on the
      // wrong parity.
      if (issuer == 0) {
        BarrierArriveExpect(full, bytes);
      } else {
        BarrierArrive(full);
      }
#pragma unroll
      for (int m = 0; m < Config::kBlocks; ++m) {
        if (m % Config::kIssuers != issuer || m >= blocks) continue;
        LoadIm2col(x + m * kBoxBytes, problem.x, full, c[m], w, h, image,
                   offset_w[m], offset_h[m]);
      }
#pragma unroll
      for (int n = 0; n < Config::kN; n += 64) {
        if ((Config::kBlocks + n / 64) % Config::kIssuers != issuer ||
            n >= channels) {
          continue;
        }
        LoadTile2(x + Config::kXBytes + n * 128, problem.dy, full, channel + n,
                  pixel);
      }
      at.Advance();
    }
  }
}

template <typename Config>
__device__ __forceinline__ void ConsumeWgrad(
    const WgradProblem& problem, uint32_t ring,
    RingBarriers<Config::kStages>& barriers) {
  const int thread = threadIdx.x - kWarpgroup;
  const uint32_t x = ring + thread / kWarpgroup * Config::kRows * kBoxBytes;
  const uint32_t dy = ring + Config::kXBytes;
  RingPosition<Config::kStages> at;
  const int64_t end = problem.Begin(blockIdx.x + 1);
  for (int64_t i = problem.Begin(blockIdx.x); i < end;) {
    const WgradPiece piece = PieceAt(problem, i, end);
    const int steps = piece.end - piece.begin;
    i += steps;
    float acc[Config::kRows][Config::kN / 2];
    MultiplyStages<typename Config::T, Contiguous::kRows, Contiguous::kRows>(
        acc, steps, x, dy, Config::kStageBytes, barriers, at);
    const bool whole = steps == problem.steps;
    float4* piece_at = reinterpret_cast<float4*>(problem.pieces) +
                       PieceSlot(problem, blockIdx.x, piece.tile) *
                           (Config::kPieceFloats / 4) +
                       thread;
#pragma unroll
    for (int quad = 0; quad < Config::kQuads; ++quad) {
      const float* a =
          &acc[quad / (Config::kN / 8)][quad % (Config::kN / 8) * 4];
      const float4 v = make_float4(a[0], a[1], a[2], a[3]);
      if (whole) {
        WriteQuad<Config>(problem, piece.tile, quad, thread, v);
      } else {
        piece_at[quad * kConsumers * kWarpgroup] = v;
      }
    }
  }
}

template <typename Config>
__global__ void __launch_bounds__(kThreads, 1)
    WgradKernel(const __grid_constant__ WgradProblem problem) {
  extern __shared__ uint8_t shared[];
  __shared__ RingBarriers<Config::kStages> barriers;
  const uint32_t ring = (SharedAddress(shared) + 1023) & ~1023u;
  if (threadIdx.x == 0)
    barriers.Init(Config::kIssuers, kConsumers * kWarpgroup / 32);
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    GiveRegisters<kProducerRegisters>();
    if (threadIdx.x % 32 == 0 && threadIdx.x / 32 < Config::kIssuers) {
      IssueWgradCopies<Config>(problem, threadIdx.x / 32, ring, barriers);
    }
  } else {
    TakeRegisters<kConsumerRegisters>();
    ConsumeWgrad<Config>(problem, ring, barriers);
  }
}

// Adds the pieces of a tile in the order of the line: a grid of tiles x quads.
template <typename Config>
__global__ void __launch_bounds__(kConsumers* kWarpgroup)
    AddPieces(const __grid_constant__ WgradProblem problem) {
  const int tile = blockIdx.x / Config::kQuads;
  const int quad = blockIdx.x % Config::kQuads;
  const int64_t line_begin = int64_t{tile} * problem.steps;
  const int64_t line_end = line_begin + problem.steps;
  // The blocks that have the tile's first and last step.
  auto holder = [&](int64_t step) {
    const int64_t line = int64_t{problem.tiles} * problem.steps;
    int block = static_cast<int>(step * problem.blocks / line);
    while (problem.Begin(block + 1) <= step) ++block;
    return block;
  };
  const int first = holder(line_begin);
  const int last = holder(line_end - 1);
  if (first == last) return;  // whole: in dw already
  const float4* pieces = reinterpret_cast<const float4*>(problem.pieces) +
                         quad * kConsumers * kWarpgroup + threadIdx.x;
  auto piece = [&](int64_t slot) {
    return pieces[slot * (Config::kPieceFloats / 4)];
  };
  // For the first block this may be the last of its share, for the others it is
  // the first.
  float4 sum = piece(2 * first + (problem.Begin(first) < line_begin));
#pragma unroll 16
  for (int block = first + 1; block <= last; ++block) {
    const float4 v = piece(2 * block);
    sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
  }
  WriteQuad<Config>(problem, tile, quad, threadIdx.x, sum);
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_WGRAD_KERNEL_CUH_
