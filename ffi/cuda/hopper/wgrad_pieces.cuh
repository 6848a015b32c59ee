// What the wgrad kernels share: who does which steps of which tile, and the
// kernel that adds the pieces of tiles that several blocks did.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_WGRAD_PIECES_CUH_
#define JAX_CONVBATCH_CUDA_HOPPER_WGRAD_PIECES_CUH_

#include "cuda/hopper/pipeline.cuh"
#include "cuda/hopper/wgrad_problem.h"

namespace jax_convbatch::hopper {

// Of AddPieces: threads of a block, pieces that a thread loads at a time.
inline constexpr int kAddThreads = 256, kAddBatch = 8;

// One block's part of a tile: steps [begin, end).
struct WgradPiece {
  int tile, begin, end;
};

// The piece at `at` of the line, of a share that ends at `end`.
__device__ __forceinline__ WgradPiece PieceAt(const WgradTiles& tiles,
                                              int64_t at, int64_t end) {
  const int tile = static_cast<int>(at / tiles.steps);
  const int64_t first = int64_t{tile} * tiles.steps;
  return {tile, static_cast<int>(at - first),
          static_cast<int>(min(end - first, int64_t{tiles.steps}))};
}

// A block has at most two pieces of tiles that others share: its first, its
// last. Where shares end with tiles it has one.
__device__ __forceinline__ int64_t PieceSlot(const WgradTiles& tiles, int block,
                                             int tile) {
  if (tiles.splits > 0) return block;
  return 2 * int64_t{block} +
         (tile != static_cast<int>(tiles.Begin(block) / tiles.steps));
}

// The blocks that have pieces of a tile. For all it is their first piece, but
// for the first block it may be the second.
struct PieceRange {
  int first, count;
  bool second;
};

__device__ __forceinline__ PieceRange PiecesOf(const WgradTiles& tiles,
                                               int tile) {
  if (tiles.splits > 0) return {tile * tiles.splits, tiles.splits, false};
  const int64_t line = int64_t{tiles.tiles} * tiles.steps;
  // The block that has a step.
  auto holder = [&](int64_t step) {
    int block = static_cast<int>(step * tiles.blocks / line);
    while (tiles.Begin(block + 1) <= step) ++block;
    return block;
  };
  const int64_t begin = int64_t{tile} * tiles.steps;
  const int first = holder(begin);
  return {first, holder(begin + tiles.steps - 1) - first + 1,
          tiles.Begin(first) < begin};
}

// Four accumulators of a wgmma's thread to dw. `quad` names eight columns of
// the product, of which a thread has two, of two rows.

// Rows are input channels from c on, columns output channels from k on.
template <typename T>
__device__ __forceinline__ void WriteQuad(const WgradTiles& tiles, int tap,
                                          int c, int k, int thread, float4 v) {
  c += thread % kWarpgroup / 32 * 16 + thread % 32 / 4;
  k += thread % 4 * 2;
  if (k >= tiles.K) return;
  T* to =
      static_cast<T*>(tiles.dw) + (int64_t{tap} * tiles.C + c) * tiles.K + k;
  if (c < tiles.C) *reinterpret_cast<uint32_t*>(to) = Pack<T>(v.x, v.y);
  if (c + 8 < tiles.C) {
    *reinterpret_cast<uint32_t*>(to + int64_t{8} * tiles.K) = Pack<T>(v.z, v.w);
  }
}

// Rows are output channels from k on, columns input channels from c on. By
// whole warps.
template <typename T>
__device__ __forceinline__ void WriteTransposedQuad(const WgradTiles& tiles,
                                                    int tap, int c, int k,
                                                    int thread, float4 v) {
  // Transposed, a lane has two output channels of one input channel.
  const uint32_t low = TransposeMatrix(Pack<T>(v.x, v.y));
  const uint32_t high = TransposeMatrix(Pack<T>(v.z, v.w));
  c += thread % 32 / 4;
  k += thread % kWarpgroup / 32 * 16 + thread % 4 * 2;
  if (c >= tiles.C) return;
  T* to =
      static_cast<T*>(tiles.dw) + (int64_t{tap} * tiles.C + c) * tiles.K + k;
  if (k < tiles.K) *reinterpret_cast<uint32_t*>(to) = low;
  if (k + 8 < tiles.K) *reinterpret_cast<uint32_t*>(to + 8) = high;
}

// A warpgroup's accumulators, on their way to dw or to the pieces. Config says
// how a tile's accumulators lie: in kQuads quads of four for each of kConsumed
// threads; Has() says whether a quad is in dw, Write() puts it there.
template <typename Config, typename Quad>
__device__ __forceinline__ void WritePiece(const WgradTiles& tiles,
                                           const WgradPiece& piece, int thread,
                                           Quad quad_of) {
  const bool whole = piece.end - piece.begin == tiles.steps;
  float4* to = reinterpret_cast<float4*>(tiles.pieces) +
               PieceSlot(tiles, blockIdx.x, piece.tile) *
                   (Config::kQuads * Config::kConsumed) +
               thread;
#pragma unroll
  for (int quad = 0; quad < Config::kQuads; ++quad) {
    if (!Config::Has(tiles, piece.tile, quad, thread)) continue;
    if (whole) {
      Config::Write(tiles, piece.tile, quad, thread, quad_of(quad));
    } else {
      to[quad * Config::kConsumed] = quad_of(quad);
    }
  }
}

// Adds the pieces of a tile. A block has `lanes` accumulator quads of one tile;
// kAddThreads / lanes groups of threads add as many runs of the pieces, each in
// the order of the line, and the runs' sums are added in that order too.
template <typename Config>
__global__ void __launch_bounds__(kAddThreads)
    AddPieces(const __grid_constant__ WgradTiles tiles, int lanes) {
  constexpr int kTileQuads = Config::kQuads * Config::kConsumed;
  __shared__ float4 sums[kAddThreads];
  const int tile = blockIdx.x / (kTileQuads / lanes);
  const int lane = threadIdx.x % lanes;
  const int in_tile = blockIdx.x % (kTileQuads / lanes) * lanes + lane;
  const int quad = in_tile / Config::kConsumed;
  const int thread = in_tile % Config::kConsumed;
  const PieceRange range = PiecesOf(tiles, tile);
  if (range.count == 1) return;  // whole: in dw already
  const int groups = kAddThreads / lanes;
  const int group = threadIdx.x / lanes;
  int block = range.first + group * range.count / groups;
  const int end = range.first + (group + 1) * range.count / groups;
  const bool has = Config::Has(tiles, tile, quad, thread);
  float4 sum = make_float4(0, 0, 0, 0);
  if (has) {
    const float4* pieces =
        reinterpret_cast<const float4*>(tiles.pieces) + in_tile;
    const int slots = tiles.splits > 0 ? 1 : 2;  // of a block
    if (range.second && group == 0) {
      sum = pieces[(int64_t{slots} * block + 1) * kTileQuads];
      ++block;
    }
    for (; block < end; block += kAddBatch) {
      float4 v[kAddBatch];
#pragma unroll
      for (int i = 0; i < kAddBatch; ++i) {
        v[i] = block + i < end
                   ? pieces[int64_t{slots} * (block + i) * kTileQuads]
                   : make_float4(0, 0, 0, 0);
      }
#pragma unroll
      for (int i = 0; i < kAddBatch; ++i) {
        sum.x += v[i].x, sum.y += v[i].y, sum.z += v[i].z, sum.w += v[i].w;
      }
    }
  }
  if (groups > 1) {
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (group > 0) return;
    for (int i = 1; i < groups; ++i) {
      const float4 v = sums[i * lanes + lane];
      sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
  }
  if (has) Config::Write(tiles, tile, quad, thread, sum);
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_WGRAD_PIECES_CUH_
