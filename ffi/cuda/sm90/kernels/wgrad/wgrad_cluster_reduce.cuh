// SPDX-License-Identifier: Apache-2.0
// How those that share a tile of wgrad add their sums: two warpgroups of a
// block, and the blocks of a cluster through distributed shared memory.
#pragma once

#include <type_traits>

#include "cuda/sm90/epilogue/add_in_order.cuh"
#include "cuda/sm90/kernels/wgrad/wgrad_partials.cuh"

namespace jax_convbatch::hopper {

// ---- two warpgroups that take stages in turns ------------------------------

// Of two warpgroups' sums of a tile, each adds one half of the columns, and has
// them in the first of its accumulators.
template <typename Config, int kCount>
__device__ __forceinline__ void AddHalves(float (&acc)[kCount], int group,
                                          int thread, uint32_t shared) {
  constexpr int kHalf = kCount / 2;
  const uint32_t at = shared + thread * 16;
  auto slot = [&](int of_group, int i) {
    return at + (of_group * kHalf + i) * (kWarpgroup * 4);
  };
  // All have multiplied, and read what they added last.
  NamedBarrier(1, Config::kConsumed);
  if (group == 0) {
#pragma unroll
    for (int i = 0; i < kHalf; i += 4) {
      StoreShared4(slot(1, i),
                   make_float4(acc[kHalf + i], acc[kHalf + i + 1],
                               acc[kHalf + i + 2], acc[kHalf + i + 3]));
    }
  } else {
#pragma unroll
    for (int i = 0; i < kHalf; i += 4) {
      StoreShared4(slot(0, i),
                   make_float4(acc[i], acc[i + 1], acc[i + 2], acc[i + 3]));
      for (int j = i; j < i + 4; ++j) acc[j] = acc[kHalf + j];
    }
  }
  NamedBarrier(1, Config::kConsumed);
#pragma unroll
  for (int i = 0; i < kHalf; i += 4) {
    const float4 v = LoadShared4(slot(group, i));
    acc[i] += v.x, acc[i + 1] += v.y, acc[i + 2] += v.z, acc[i + 3] += v.w;
  }
}

// ---- small tiles: each block sends the others what they add -----------------

// A block forms the sum of its part of the quads, in order, to dw or to the
// partials. `sums` is where kCluster times that part has room, `arrived` what
// it is announced by.
template <typename Config, int kCluster, typename Quad>
__device__ __forceinline__ void ExchangeAmong(const WgradTiles& tiles,
                                              int share, int tile, int thread,
                                              uint32_t sums, uint32_t arrived,
                                              Quad quad_of) {
  constexpr int kOwn = Config::kQuads / kCluster;
  constexpr int kPartBytes = kOwn * Config::kConsumed * 16;
  static_assert(Config::kQuads % kCluster == 0 &&
                (kOwn % 8 == 0 || 8 % kOwn == 0));
  const int members = tiles.paired ? 2 : 1;
  const int member = blockIdx.x % members;
  const int rank = share % kCluster;
#pragma unroll
  for (int block = 0; block < kCluster; ++block) {
    const int to = block * members + member;
    const uint32_t slot = InCluster(sums + rank * kPartBytes + thread * 16, to);
    const uint32_t barrier = InCluster(arrived, to);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      SendShared4(slot + i * Config::kConsumed * 16, barrier,
                  quad_of(block * kOwn + i));
    }
  }
  const int begin = rank * kOwn;
  float4* to =
      reinterpret_cast<float4*>(tiles.partials) +
      PartialSlot(tiles, share, tile) * (Config::kQuads * Config::kConsumed) +
      thread;
  constexpr int kBatch = kOwn < 8 ? kOwn : 8;  // of one block
  auto place = PlaceOf<Config>(tiles, tile, begin / 8, thread);
  BarrierWait(arrived, 0);
#pragma unroll
  for (int first = 0; first < kOwn; first += kBatch) {
    const int quad = begin + first;
    if (first > 0) place = PlaceOf<Config>(tiles, tile, quad / 8, thread);
    if (!Config::Has(tiles, tile, quad / 8, thread)) continue;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (!HasQuad<Config>(tiles, tile, quad + i, thread)) continue;
      const uint32_t slot =
          sums + ((first + i) * Config::kConsumed + thread) * 16;
      float4 sum = LoadShared4(slot);
#pragma unroll
      for (int block = 1; block < kCluster; ++block) {
        Add(&sum, LoadShared4(slot + block * kPartBytes));
      }
      if (tiles.cluster == tiles.splits) {
        WriteQuad<Config>(place, (quad + i) % 8, sum);
      } else {
        to[(quad + i) * Config::kConsumed] = sum;
      }
    }
  }
}

template <typename Config, typename Quad>
__device__ __forceinline__ void ExchangeQuads(const WgradTiles& tiles,
                                              int share, int tile, int thread,
                                              uint32_t sums, uint32_t arrived,
                                              Quad quad_of) {
  auto among = [&](auto cluster) {
    ExchangeAmong<Config, decltype(cluster)::value>(tiles, share, tile, thread,
                                                    sums, arrived, quad_of);
  };
  switch (tiles.cluster) {
    case 2:
      return among(std::integral_constant<int, 2>());
    case 4:
      return among(std::integral_constant<int, 4>());
    case 8:
      return among(std::integral_constant<int, 8>());
  }
}

// ---- large tiles: two blocks, each with half of the quads -------------------

// Each block adds the other's sums of its half of the quads to its own, to dw
// or to the partials. Overwrites the ring, from `shared` on.
template <typename Config, typename Quad>
__device__ __forceinline__ void AddInTwo(const WgradTiles& tiles, int share,
                                         int tile, int thread, uint32_t shared,
                                         Quad quad_of) {
  constexpr int kOwn = Config::kQuads / 2, kBatch = 4;
  static_assert(kOwn % kBatch == 0);
  auto slot = [&](int i) {
    return shared + (i * Config::kConsumed + thread) * 16;
  };
  const int other = 1 - share % 2;
  float4* to =
      reinterpret_cast<float4*>(tiles.partials) +
      PartialSlot(tiles, share, tile) * (Config::kQuads * Config::kConsumed) +
      thread;
  // Registers have no addresses: of either half a code of its own.
  auto leave = [&](auto half) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      StoreShared4(slot(i), quad_of(decltype(half)::value * kOwn + i));
    }
  };
  auto add = [&](auto half) {
#pragma unroll
    for (int i = 0; i < kOwn; i += kBatch) {
      const int quad = decltype(half)::value * kOwn + i;
      if (!Config::Has(tiles, tile, quad / 8, thread)) continue;
      const auto place = PlaceOf<Config>(tiles, tile, quad / 8, thread);
      float4 v[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        v[j] = LoadClusterShared(slot(i + j), other);
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        if (!HasQuad<Config>(tiles, tile, quad + j, thread)) continue;
        Add(&v[j], quad_of(quad + j));
        if (tiles.cluster == tiles.splits) {
          WriteQuad<Config>(place, quad % 8 + j, v[j]);
        } else {
          to[(quad + j) * Config::kConsumed] = v[j];
        }
      }
    }
  };
  using First = std::integral_constant<int, 0>;
  using Second = std::integral_constant<int, 1>;
  NamedBarrier(1, Config::kConsumed);  // all have multiplied
  if (other == 0) {
    leave(First());
  } else {
    leave(Second());
  }
  ClusterBarrier();
  if (other == 0) {
    add(Second());
  } else {
    add(First());
  }
  // No block ends while another reads its memory.
  ClusterBarrier</*kWritten=*/false>();
}

}  // namespace jax_convbatch::hopper
