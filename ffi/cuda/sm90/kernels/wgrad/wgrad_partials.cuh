// SPDX-License-Identifier: Apache-2.0
// What the wgrad kernels share: who does which steps of which tile, and where
// the partials of tiles lie that several blocks did (wgrad_add_partials.cuh
// adds them).
#pragma once

#include "cuda/sm90/copy/pipeline.cuh"
#include "cuda/sm90/kernels/wgrad/wgrad_store.cuh"
#include "cuda/sm90/problem/wgrad_problem.h"

namespace jax_convbatch::hopper {

// One block's part of a tile: classes [begin, end) of its steps.
struct WgradPartial {
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

// The partial at `at` of the line, of a share that ends at `end`.
__device__ __forceinline__ WgradPartial PartialAt(const WgradTiles& tiles,
                                                  int64_t at, int64_t end) {
  const int tile = static_cast<int>(at / tiles.classes);
  const int64_t first = int64_t{tile} * tiles.classes;
  return {tile, static_cast<int>(at - first),
          static_cast<int>(min(end - first, int64_t{tiles.classes}))};
}

// The one partial of a share where tiles are split evenly, without the 64-bit
// divisions of PartialAt.
__device__ __forceinline__ WgradPartial SplitPartial(const WgradTiles& tiles,
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

// A share's partials, one after another. By whole warps where kWhole, which
// says that there may be whole tiles after the shares (first_shared is not 0).
template <bool kWhole>
class PartialWalk {
 public:
  __device__ PartialWalk(const WgradTiles& tiles, int share)
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

  __device__ bool Next(WgradPartial* partial) {
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
      *partial = SplitPartial(tiles_, share_);
      at_ = end_;
    } else {
      *partial = PartialAt(tiles_, at_, end_);
      at_ += partial->end - partial->begin;
    }
    return true;
  }

  // Whole tiles after this partial.
  __device__ int whole() const { return whole_; }

 private:
  const WgradTiles& tiles_;
  int share_, whole_;
  int64_t at_, end_;
};

// A block has at most two partials of tiles that others share: its first, its
// last. Where shares end with tiles it has one.
__device__ __forceinline__ int64_t PartialSlot(const WgradTiles& tiles,
                                               int block, int tile) {
  if (tiles.splits > 0) return block / tiles.cluster;
  return 2 * int64_t{block} +
         (tile != static_cast<int>(tiles.Begin(block) / tiles.classes));
}

// The blocks (clusters) that have partials of a shared tile. For all it is
// their first partial, but for the first block it may be the second.
struct PartialRange {
  int first, count;
  bool second;
};

__device__ __forceinline__ PartialRange PartialsOf(const WgradTiles& tiles,
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

// Whether whole tiles may go to dw by StoreBlocks.
template <typename Config, typename T = typename Config::T>
inline constexpr bool kStoresBlocks = !kIsNarrow<Config::kWidth>;
template <typename Config>
inline constexpr bool kStoresBlocks<Config, float> = false;

// A warpgroup's accumulators, on their way to dw or to the partials. Config
// says how a tile's accumulators lie: in kQuads quads for each of kConsumed
// threads; Has() says whether a block of eight is in dw, Origin() where.
// `is_last`: nobody uses the ring from `ring` on any more. `rows`: kRowsBytes
// of each warpgroup, for kTransposed sums of tiles before the last, or 0.
template <typename Config, typename Quad>
__device__ __forceinline__ void WritePartial(const WgradTiles& tiles, int share,
                                             const WgradPartial& partial,
                                             bool is_last, int thread,
                                             uint32_t ring, Quad quad_of,
                                             uint32_t rows = 0) {
  // Two loops: the short one should not be scattered over the other's code.
  if (partial.end - partial.begin == tiles.classes) {
    if constexpr (kStoresBlocks<Config>) {
      if (tiles.splits > 0 && is_last) {
        NamedBarrier(1, Config::kConsumed);  // all have multiplied
        StoreBlocks<Config>(tiles, partial.tile, thread, ring, quad_of);
        return;
      }
      if constexpr (Config::kTransposed) {
        if (rows != 0) {
          StoreRows<Config>(tiles, partial.tile, thread, rows, quad_of);
          return;
        }
      }
    }
#pragma unroll
    for (int block = 0; block < Config::kQuads / 8; ++block) {
      if (!Config::Has(tiles, partial.tile, block, thread)) continue;
      const auto place = PlaceOf<Config>(tiles, partial.tile, block, thread);
      if constexpr (kStoresBlocks<Config> && !Config::kTransposed) {
        auto of_block = [&](int i) { return quad_of(block * 8 + i); };
        WriteFourQuads<Config>(place, 0, of_block);
        WriteFourQuads<Config>(place, 4, of_block);
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          if (!HasQuad<Config>(tiles, partial.tile, block * 8 + i, thread))
            continue;
          WriteQuad<Config>(place, i, quad_of(block * 8 + i));
        }
      }
    }
    return;
  }
  float4* to = reinterpret_cast<float4*>(tiles.partials) +
               PartialSlot(tiles, share, partial.tile) *
                   (Config::kQuads * Config::kConsumed) +
               thread;
#pragma unroll
  for (int quad = 0; quad < Config::kQuads; ++quad) {
    if (HasQuad<Config>(tiles, partial.tile, quad, thread)) {
      to[quad * Config::kConsumed] = quad_of(quad);
    }
  }
}

}  // namespace jax_convbatch::hopper
