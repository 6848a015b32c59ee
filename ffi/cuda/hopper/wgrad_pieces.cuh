// What the wgrad kernels share: who does which steps of which tile, and the
// kernel that adds the pieces of tiles that several blocks did.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_WGRAD_PIECES_CUH_
#define JAX_CONVBATCH_CUDA_HOPPER_WGRAD_PIECES_CUH_

#include "cuda/hopper/pipeline.cuh"
#include "cuda/hopper/wgrad_problem.h"
#include "cuda/hopper/wgrad_store.cuh"

namespace jax_convbatch::hopper {

// Of AddPieces: threads of a block, pieces that a thread loads at a time.
inline constexpr int kAddThreads = 256, kAddBatch = 8;

// One block's part of a tile: classes [begin, end) of its steps.
struct WgradPiece {
  int tile, begin, end;

  __device__ int Steps(const WgradTiles& tiles) const {
    const int rest = tiles.steps - tiles.rounds * tiles.classes;
    return tiles.rounds * (end - begin) + min(end, rest) - min(begin, rest);
  }

  // Whether its last step is the tile's, with fewer pixels.
  __device__ bool HasRest(const WgradTiles& tiles) const {
    return tiles.has_rest && begin <= tiles.rest_class &&
           tiles.rest_class < end;
  }
};

// The piece at `at` of the line, of a share that ends at `end`.
__device__ __forceinline__ WgradPiece PieceAt(const WgradTiles& tiles,
                                              int64_t at, int64_t end) {
  const int tile = static_cast<int>(at / tiles.classes);
  const int64_t first = int64_t{tile} * tiles.classes;
  return {tile, static_cast<int>(at - first),
          static_cast<int>(min(end - first, int64_t{tiles.classes}))};
}

// The one piece of a share where tiles are split evenly, without the 64-bit
// divisions of PieceAt.
__device__ __forceinline__ WgradPiece SplitPiece(const WgradTiles& tiles,
                                                 int share) {
  const auto& by_splits = tiles.by_splits;
  uint32_t tile = share;
  const uint32_t split = TakeDigit(by_splits, tile);
  const uint32_t least = by_splits.Divide(tiles.classes);
  const uint32_t rest = tiles.classes - least * by_splits.divisor();
  auto begin = [&](uint32_t split) {
    return int(split * least + by_splits.Divide(split * rest));
  };
  return {int(tile), begin(split), begin(split + 1)};
}

// The share of the line that this block has. A cluster of pairs has the shares
// of the same steps of two tiles: neighbours in filter rows where they share
// dy, in output channels where they share x.
template <bool kPair>
__device__ __forceinline__ int ShareOf(const WgradTiles& tiles) {
  if (!kPair) return blockIdx.x;
  const int rank = blockIdx.x % (2 * tiles.cluster);
  const int group = blockIdx.x / (2 * tiles.cluster);
  const int clusters = tiles.splits / tiles.cluster;  // of a pair of tiles
  const int pair = group / clusters;
  const int split = group % clusters * tiles.cluster + rank / 2;
  const int pair_row = tiles.by_minor_tiles.Divide(pair);
  const int tile = tiles.shares_x
                       ? pair * 2 + rank % 2
                       : pair + (pair_row + rank % 2) * tiles.n_tiles;
  return tile * tiles.splits + split;
}

// A share's pieces, one after another. By whole warps where kWhole, which says
// that there may be whole tiles after the shares (first_shared is not 0).
template <bool kWhole>
class PieceWalk {
 public:
  __device__ PieceWalk(const WgradTiles& tiles, int share)
      : tiles_(tiles), share_(share), whole_(0), at_(0), end_(1) {
    if (kWhole && tiles.whole_each > 0) {
      whole_ = tiles.whole_each;
      at_ = int64_t{tiles.first_shared} * tiles.classes + share;
      end_ = at_ + 1;
      // Some blocks may share none.
      if (at_ >= int64_t{tiles.tiles} * tiles.classes) at_ = end_;
    } else if (tiles.splits == 0) {
      at_ = tiles.Begin(share);
      end_ = tiles.Begin(share + 1);
    }
  }

  __device__ bool Next(WgradPiece* piece) {
    bool is_done = at_ >= end_;
    // The same in all lanes, and known to be.
    if constexpr (kWhole) is_done = __shfl_sync(~0u, is_done, 0);
    if (is_done) {
      if (!kWhole || whole_ == 0) return false;
      --whole_;
      at_ = (int64_t{whole_} * tiles_.blocks + blockIdx.x) * tiles_.classes;
      end_ = at_ + tiles_.classes;
    }
    if (tiles_.splits > 0 && (!kWhole || tiles_.whole_each == 0)) {
      *piece = SplitPiece(tiles_, share_);
      at_ = end_;
    } else {
      *piece = PieceAt(tiles_, at_, end_);
      at_ += piece->end - piece->begin;
    }
    return true;
  }

  // Whole tiles after this piece.
  __device__ int whole() const { return whole_; }

 private:
  const WgradTiles& tiles_;
  int share_, whole_;
  int64_t at_, end_;
};

// A block has at most two pieces of tiles that others share: its first, its
// last. Where shares end with tiles it has one.
__device__ __forceinline__ int64_t PieceSlot(const WgradTiles& tiles, int block,
                                             int tile) {
  if (tiles.splits > 0) return block / tiles.cluster;
  return 2 * int64_t{block} +
         (tile != static_cast<int>(tiles.Begin(block) / tiles.classes));
}

// The blocks (clusters) that have pieces of a shared tile. For all it is their
// first piece, but for the first block it may be the second.
struct PieceRange {
  int first, count;
  bool second;
};

__device__ __forceinline__ PieceRange PiecesOf(const WgradTiles& tiles,
                                               int tile) {
  if (tiles.splits > 0) {
    const int count = tiles.splits / tiles.cluster;
    return {tile * count, count, false};
  }
  const int64_t line = int64_t{tiles.tiles} * tiles.classes;
  // The block that has a class.
  auto holder = [&](int64_t at) {
    int block = static_cast<int>(at * tiles.blocks / line);
    while (tiles.Begin(block + 1) <= at) ++block;
    return block;
  };
  const int64_t begin = int64_t{tile} * tiles.classes;
  const int first = holder(begin);
  return {first, holder(begin + tiles.classes - 1) - first + 1,
          tiles.Begin(first) < begin};
}

// A warpgroup's accumulators, on their way to dw or to the pieces. Config says
// how a tile's accumulators lie: in kQuads quads for each of kConsumed threads;
// Has() says whether a block of eight is in dw, Origin() where. `is_last`:
// nobody uses the ring from `ring` on any more.
template <typename Config, typename Quad>
__device__ __forceinline__ void WritePiece(const WgradTiles& tiles, int share,
                                           const WgradPiece& piece,
                                           bool is_last, int thread,
                                           uint32_t ring, Quad quad_of) {
  // Two loops: the short one should not be scattered over the other's code.
  if (piece.end - piece.begin == tiles.classes) {
    if constexpr (!std::is_same_v<typename Config::T, float>) {
      if (tiles.splits > 0 && is_last) {
        NamedBarrier(1, Config::kConsumed);  // all have multiplied
        StoreBlocks<Config>(tiles, piece.tile, thread, ring, quad_of);
        return;
      }
    }
#pragma unroll
    for (int block = 0; block < Config::kQuads / 8; ++block) {
      if (!Config::Has(tiles, piece.tile, block, thread)) continue;
      const auto place = PlaceOf<Config>(tiles, piece.tile, block, thread);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        WriteQuad<Config>(place, i, quad_of(block * 8 + i));
      }
    }
    return;
  }
  float4* to = reinterpret_cast<float4*>(tiles.pieces) +
               PieceSlot(tiles, share, piece.tile) *
                   (Config::kQuads * Config::kConsumed) +
               thread;
#pragma unroll
  for (int quad = 0; quad < Config::kQuads; ++quad) {
    if (Config::Has(tiles, piece.tile, quad / 8, thread)) {
      to[quad * Config::kConsumed] = quad_of(quad);
    }
  }
}

__device__ __forceinline__ void Add(float4* sum, const float4& v) {
  sum->x += v.x, sum->y += v.y, sum->z += v.z, sum->w += v.w;
}

// Adds the pieces of a shared tile. Of one thread of a tile's consumers, a
// thread here has kEach of the quads that lie side by side. A block has `lanes`
// such sets; kAddThreads / lanes groups of threads add as many runs of the
// pieces, each in the order of the line, and the runs' sums are added in that
// order too.
template <typename Config, int kEach>
__global__ void __launch_bounds__(kAddThreads)
    AddPieces(const __grid_constant__ WgradTiles tiles, int lanes) {
  constexpr int kTileQuads = Config::kQuads * Config::kConsumed;
  constexpr int kBatch = kAddBatch / kEach;
  static_assert(kEach <= 8 && Config::kQuads % kEach == 0);
  __shared__ float4 sums[kAddThreads][kEach];
  const int tile_blocks = kTileQuads / kEach / lanes;
  const int tile = blockIdx.x / tile_blocks;
  const int lane = threadIdx.x % lanes;
  const int in_tile = (blockIdx.x - tile * tile_blocks) * lanes + lane;
  const int quad = in_tile / Config::kConsumed * kEach;
  const int thread = in_tile % Config::kConsumed;
  const int of_all = tiles.first_shared + tile;
  const bool has = Config::Has(tiles, of_all, quad / 8, thread);
  const auto place = PlaceOf<Config>(tiles, of_all, quad / 8, thread);
  const PieceRange range = PiecesOf(tiles, tile);
  if (range.count == 1) return;  // whole: in dw already
  const int groups = kAddThreads / lanes;
  const int group = threadIdx.x / lanes;
  int block = range.first + group * range.count / groups;
  const int end = range.first + (group + 1) * range.count / groups;
  const int slots = tiles.splits > 0 ? 1 : 2;  // of a block
  WaitForPrimary();
  float4 sum[kEach];
#pragma unroll
  for (int j = 0; j < kEach; ++j) sum[j] = make_float4(0, 0, 0, 0);
  if (has) {
    const float4* pieces = reinterpret_cast<const float4*>(tiles.pieces) +
                           quad * Config::kConsumed + thread;
    auto at = [&](int64_t slot, int j) {
      return pieces[slot * kTileQuads + j * Config::kConsumed];
    };
    if (range.second && group == 0) {
#pragma unroll
      for (int j = 0; j < kEach; ++j) sum[j] = at(2 * int64_t{block} + 1, j);
      ++block;
    }
    for (; block < end; block += kBatch) {
      float4 v[kBatch][kEach];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
#pragma unroll
        for (int j = 0; j < kEach; ++j) {
          v[i][j] = block + i < end ? at(int64_t{slots} * (block + i), j)
                                    : make_float4(0, 0, 0, 0);
        }
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
#pragma unroll
        for (int j = 0; j < kEach; ++j) Add(&sum[j], v[i][j]);
      }
    }
  }
  if (groups > 1) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) sums[threadIdx.x][j] = sum[j];
    __syncthreads();
    if (group > 0) return;
    for (int i = 1; i < groups; ++i) {
#pragma unroll
      for (int j = 0; j < kEach; ++j) Add(&sum[j], sums[i * lanes + lane][j]);
    }
  }
  if (!has) return;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    WriteQuad<Config>(place, quad % 8 + j, sum[j]);
  }
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_WGRAD_PIECES_CUH_
