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
// kGroups: consumer warpgroups.
template <typename T_, int kM_, int kN_, int kStages_, bool kTransposed_,
          int kGroups_ = kConsumers, bool kPair_ = false>
struct WgradConfig {
  using T = T_;
  // Whether blocks may copy for each other.
  static constexpr bool kPair = kPair_;
  // The same for AddPieces, to which stages and pairs are nothing.
  using Layout = WgradConfig<T_, kM_, kN_, 1, kTransposed_, kGroups_>;
  static constexpr int kM = kM_, kN = kN_, kStages = kStages_;
  static constexpr bool kTransposed = kTransposed_;
  static constexpr int kBlocks = kM / 64;  // of filter rows
  static constexpr int kXBytes = kBlocks * kBoxBytes;
  static constexpr int kStageBytes = kXBytes + kN / 64 * kBoxBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes + 1024;
  static constexpr int kIssuers = kBlocks + kN / 64 < 4 ? kBlocks + kN / 64 : 4;
  // A warpgroup's: blocks of 64 rows, and columns.
  static constexpr int kGroups = kGroups_;
  static constexpr int kRows = (kTransposed ? kN : kM) / 64 / kGroups;
  static constexpr int kColumns = kTransposed ? kM : kN;
  static constexpr int kColumnQuads = kColumns / 8;
  static constexpr int kQuads = kRows * kColumnQuads;  // of a thread
  static constexpr int kConsumed = kGroups * kWarpgroup;
  static constexpr int kThreads = kConsumed + kWarpgroup;
  // Small tiles share a multiprocessor.
  static constexpr int kResident =
      kGroups == 1 && kSharedBytes < 113 << 10 ? 2 : 1;

  // Of the product's 64 x 64 blocks that a thread has parts of: rows, columns.
  __device__ static int Row(int block, int thread) {
    return thread / kWarpgroup * kRows + block / (kColumns / 64);
  }
  __device__ static int Column(int block) { return block % (kColumns / 64); }
  // Its filter rows, in the tile.
  __device__ static int FilterBlock(int block, int thread) {
    return kTransposed ? Column(block) : Row(block, thread);
  }

  __device__ static bool Has(const WgradTiles& tiles, int tile, int block,
                             int thread) {
    return FilterBlock(block, thread) < BlocksOf<kBlocks>(tiles, tile);
  }

  __device__ static QuadsPlace<T> Place(const WgradTiles& tiles, int tile,
                                        int block, int thread) {
    const int rows =
        tile / tiles.n_tiles * kBlocks + FilterBlock(block, thread);
    const int tap = rows / tiles.channel_blocks;
    const int c = (rows - tap * tiles.channel_blocks) * 64;
    const int k = tile % tiles.n_tiles * kN;
    return PlaceOf<T, kTransposed>(
        tiles, tap, c,
        k + (kTransposed ? Row(block, thread) : Column(block)) * 64, thread);
  }
};

// The boxes of a stage are shared out among the issuing threads, one a warp.
template <typename Config>
__device__ __forceinline__ void IssueWgradCopies(
    const WgradProblem& problem, int issuer, uint32_t ring,
    RingBarriers<Config::kStages>& barriers) {
  RingPosition<Config::kStages> at;
  // Of a pair: which one this is, and both.
  const int member = blockIdx.x % 2;
  const int rank = blockIdx.x % (2 * problem.cluster);
  const auto both = static_cast<uint16_t>(3 << (rank & ~1));
  PieceWalk walk(problem, ShareOf(problem));
  for (WgradPiece piece; walk.Next(&piece);) {
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
    int round = 0;  // the first step of this round of the classes
    int step = piece.begin;
    for (int i = piece.Steps(problem); i > 0; --i) {
      const unsigned pixel = (round + step) * 64u;
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
        const uint32_t to = x + m * kBoxBytes;
        if (Config::kPair && problem.shares_x) {
          if (m % 2 != member) continue;
          MulticastIm2col(to, problem.x, full, c[m], w, h, image, offset_w[m],
                          offset_h[m], both);
        } else {
          LoadIm2col(to, problem.x, full, c[m], w, h, image, offset_w[m],
                     offset_h[m]);
        }
      }
#pragma unroll
      for (int n = 0; n < Config::kN / 64; ++n) {
        if ((Config::kBlocks + n) % Config::kIssuers != issuer ||
            n * 64 >= channels) {
          continue;
        }
        const uint32_t to = x + Config::kXBytes + n * kBoxBytes;
        if (Config::kPair && !problem.shares_x) {
          if (n % 2 != member) continue;
          MulticastTile2(to, problem.dy, full, channel + n * 64, pixel, both);
        } else {
          LoadTile2(to, problem.dy, full, channel + n * 64, pixel);
        }
      }
      at.Advance();
      if (++step == piece.end) {
        step = piece.begin;
        round += problem.classes;
      }
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
  const int share = ShareOf(problem);
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
  PieceWalk walk(problem, share);
  for (WgradPiece piece; walk.Next(&piece);) {
    const int steps = piece.Steps(problem);
    refills = steps - Config::kStages;
    float acc[Config::kRows][Config::kColumns / 2];
    MultiplyStages<typename Config::T, Contiguous::kRows, Contiguous::kRows>(
        acc, steps, a, b, Config::kStageBytes, barriers, at, Nothing(),
        release);
    auto quad_of = [&](int quad) {
      const float* v =
          &acc[quad / Config::kColumnQuads][quad % Config::kColumnQuads * 4];
      return make_float4(v[0], v[1], v[2], v[3]);
    };
    if (problem.cluster > 1) {
      WriteClusterPiece<Config>(problem, share, piece.tile, thread, ring,
                                quad_of);
    } else {
      WritePiece<Config>(problem, share, piece, thread, quad_of);
    }
  }
}

template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kResident)
    WgradKernel(const __grid_constant__ WgradProblem problem) {
  extern __shared__ uint8_t shared[];
  __shared__ RingBarriers<Config::kStages> barriers;
  const uint32_t ring = (SharedAddress(shared) + 1023) & ~1023u;
  if (threadIdx.x == 32) {
    PrefetchMap(problem.x);
    PrefetchMap(problem.dy);
  }
  if (threadIdx.x == 0)
    barriers.Init(Config::kIssuers,
                  (Config::kPair ? 2 : 1) * Config::kConsumed / 32);
  if constexpr (Config::kPair) {
    ClusterBarrier</*kWritten=*/false>();  // Init() has its own fence
  } else {
    __syncthreads();
  }
  if (threadIdx.x < kWarpgroup) {
    if constexpr (Config::kGroups > 1) GiveRegisters<kProducerRegisters>();
    if (threadIdx.x % 32 == 0 && threadIdx.x / 32 < Config::kIssuers) {
      IssueWgradCopies<Config>(problem, threadIdx.x / 32, ring, barriers);
      // Earlier, short launches take longer.
      LaunchDependents();
    }
  } else {
    if constexpr (Config::kGroups > 1) TakeRegisters<kConsumerRegisters>();
    ConsumeWgrad<Config>(problem, ring, barriers);
  }
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_WGRAD_KERNEL_CUH_
