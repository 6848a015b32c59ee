// wgrad: dw[tap, c, k] = sum over pixels of x[pixel + tap, c] dy[pixel, k].
//
// The same ring and the same warpgroups as conv_kernel.cuh, with both operands
// transposed by the multiplier: a stage holds 64 pixels of x (im2col) for each
// block of filter rows and of dy for each 64 output channels.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_WGRAD_KERNEL_CUH_
#define JAX_CONVBATCH_CUDA_HOPPER_WGRAD_KERNEL_CUH_

#include "cuda/hopper/pipeline.cuh"
#include "cuda/hopper/wgrad_pieces.cuh"

namespace jax_convbatch::hopper {

// Blocks of filter rows in a tile: fewer than kBlocks in the last one.
template <int kBlocks>
__device__ __forceinline__ int BlocksOf(const WgradTiles& tiles, int tile) {
  return min(kBlocks, tiles.taps * tiles.channel_blocks -
                          tile / tiles.n_tiles * kBlocks);
}

// kTransposed: a warpgroup has 64 output channels by all filter rows of the
// tile, in place of filter rows by all output channels. The longer side should
// be the one that all share: each warpgroup reads it once for 64 of the other.
template <typename T_, int kM_, int kN_, int kStages_, bool kTransposed_>
struct WgradConfig {
  using T = T_;
  static constexpr int kM = kM_, kN = kN_, kStages = kStages_;
  static constexpr bool kTransposed = kTransposed_;
  static constexpr int kBlocks = kM / 64;  // of filter rows
  static constexpr int kXBytes = kBlocks * kBoxBytes;
  static constexpr int kStageBytes = kXBytes + kN / 64 * kBoxBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes + 1024;
  static constexpr int kIssuers = kBlocks + kN / 64 < 4 ? kBlocks + kN / 64 : 4;
  // A warpgroup's: blocks of 64 rows, and columns.
  static constexpr int kRows = (kTransposed ? kN : kM) / 64 / kConsumers;
  static constexpr int kColumns = kTransposed ? kM : kN;
  static constexpr int kColumnQuads = kColumns / 8;
  static constexpr int kQuads = kRows * kColumnQuads;  // of a thread
  static constexpr int kConsumed = kConsumers * kWarpgroup;

  // The block of 64 rows that a quad belongs to.
  __device__ static int Row(int quad, int thread) {
    return thread / kWarpgroup * kRows + quad / kColumnQuads;
  }
  __device__ static int Column(int quad) { return quad % kColumnQuads * 8; }

  // The block of filter rows of a quad, in its tile.
  __device__ static int Block(int quad, int thread) {
    return kTransposed ? Column(quad) / 64 : Row(quad, thread);
  }

  __device__ static bool Has(const WgradTiles& tiles, int tile, int quad,
                             int thread) {
    return Block(quad, thread) < BlocksOf<kBlocks>(tiles, tile);
  }

  __device__ static void Write(const WgradTiles& tiles, int tile, int quad,
                               int thread, float4 v) {
    const int block = tile / tiles.n_tiles * kBlocks + Block(quad, thread);
    const int tap = block / tiles.channel_blocks;
    const int c = (block - tap * tiles.channel_blocks) * 64;
    const int k = tile % tiles.n_tiles * kN;
    if constexpr (kTransposed) {
      WriteTransposedQuad<T>(tiles, tap, c + Column(quad) % 64,
                             k + Row(quad, thread) * 64, thread, v);
    } else {
      WriteQuad<T>(tiles, tap, c, k + Column(quad), thread, v);
    }
  }
};

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
    const int blocks = BlocksOf<Config::kBlocks>(problem, piece.tile);
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
  const uint32_t own = thread / kWarpgroup * Config::kRows * kBoxBytes;
  const uint32_t x = ring;
  const uint32_t dy = ring + Config::kXBytes;
  const uint32_t a = (Config::kTransposed ? dy : x) + own;
  const uint32_t b = Config::kTransposed ? x : dy;
  RingPosition<Config::kStages> at;
  const int64_t end = problem.Begin(blockIdx.x + 1);
  for (int64_t i = problem.Begin(blockIdx.x); i < end;) {
    const WgradPiece piece = PieceAt(problem, i, end);
    const int steps = piece.end - piece.begin;
    i += steps;
    float acc[Config::kRows][Config::kColumns / 2];
    MultiplyStages<typename Config::T, Contiguous::kRows, Contiguous::kRows>(
        acc, steps, a, b, Config::kStageBytes, barriers, at);
    WritePiece<Config>(problem, piece, thread, [&](int quad) {
      const float* v =
          &acc[quad / Config::kColumnQuads][quad % Config::kColumnQuads * 4];
      return make_float4(v[0], v[1], v[2], v[3]);
    });
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

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_WGRAD_KERNEL_CUH_
