// SPDX-License-Identifier: Apache-2.0
// What the kernels that sample share: the geometry as they see it, and how
// pixels and channels are dealt out to blocks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>

#include "conv_geometry.h"
#include "cuda/common/dtypes.h"
#include "cuda/common/fast_divmod.h"
#include "cuda/common/positions.cuh"
#include "cuda/cublas/conv_gemms.h"
#include "cuda/deform/sampling.h"

namespace jax_convbatch {

// A tile of pixels that one block works on, so that what neighbours share stays
// in the first-level cache.
struct Tile {
  int h, w;
};

// Whatever counts channels counts vectors of them. Nothing here passes 2^31:
// MaxSampled.
struct SamplingShape {
  int32_t H, W, h, w;  // the image, and the pixels that tiles cover
  int32_t taps, offset_groups;
  int32_t mine;                         // channels of an offset group
  int32_t lanes;                        // threads that share a pixel's channels
  int32_t channels, group_stride, row;  // strides of x and of the columns
  int32_t parts;                        // blocks that share a tile's channels
  Tile tile;
  PositionGrid grid;
  FastDivmod<uint32_t> tap_radix, part_radix, offset_group_radix, tiles_h,
      tiles_w, group_channels;
  int64_t blocks;

  // Tiles cover the outputs, or the inputs. Up to `most_parts` blocks share a
  // tile, as few as give a GPU enough of them.
  SamplingShape(const ConvGeometry& g, int64_t samples, int64_t offset_groups,
                int64_t vector, bool inputs, Tile tile, int most_lanes,
                int64_t most_parts)
      : H(g.H),
        W(g.W),
        h(inputs ? g.H : g.P),
        w(inputs ? g.W : g.Q),
        taps(g.taps()),
        offset_groups(offset_groups),
        mine(g.C / offset_groups / vector),
        lanes(1),
        channels(g.C / vector),
        tile(tile),
        grid(g),
        tap_radix(g.taps()),
        offset_group_radix(offset_groups),
        group_channels(g.group_C() / vector) {
    const Columns columns(g, samples);
    group_stride = columns.group_stride / vector;
    row = columns.ld / g.taps() / vector;
    while (lanes < most_lanes && lanes < mine) lanes *= 2;
    const int64_t down = (h + tile.h - 1) / tile.h;
    const int64_t across = (w + tile.w - 1) / tile.w;
    blocks = samples * down * across * offset_groups;
    constexpr int64_t kEnough = 1 << 11;
    const int64_t chunks = (mine + lanes - 1) / lanes;
    parts = std::min({most_parts, chunks, (kEnough + blocks - 1) / blocks});
    blocks *= parts;
    part_radix = FastDivmod<uint32_t>(parts);
    tiles_h = FastDivmod<uint32_t>(down);
    tiles_w = FastDivmod<uint32_t>(across);
  }
};

// Whether channels that lie together both in a column and in an offset group
// can be moved by so many.
inline bool Vectorizes(const ConvGeometry& g, int64_t offset_groups,
                       int64_t vector) {
  return std::gcd(g.group_C(), g.C / offset_groups) % vector == 0;
}

#ifdef __CUDACC__

// What a block works on.
struct BlockWork {
  uint32_t part, offset_group, h, w, sample;

  __device__ explicit BlockWork(const SamplingShape& s, uint32_t block) {
    uint32_t rest = block;
    part = TakeDigit(s.part_radix, rest);
    offset_group = TakeDigit(s.offset_group_radix, rest);
    w = TakeDigit(s.tiles_w, rest) * s.tile.w;
    h = TakeDigit(s.tiles_h, rest) * s.tile.h;
    sample = rest;
  }
};

// Where vector `c` of a pixel lies in the columns, but for the row.
__device__ inline int InColumns(const SamplingShape& s, uint32_t c) {
  const uint32_t group = s.group_channels.Divide(c);
  return group * s.group_stride + (c - group * s.group_channels.divisor());
}

// p[at], or zeros where `at` is negative. Without a branch, so that several are
// in flight.
template <typename T, int kVector>
__device__ Vector<T, kVector> LoadOrZeros(const Vector<T, kVector>* p, int at) {
  Vector<T, kVector> result;
  if constexpr (sizeof(result) == 16) {
    uint32_t r[4];
    asm volatile(
        "{\n"
        ".reg .pred there;\n"
        "setp.ge.s32 there, %5, 0;\n"
        "mov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
        "@there ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4];\n"
        "}"
        : "=&r"(r[0]), "=&r"(r[1]), "=&r"(r[2]), "=&r"(r[3])
        : "l"(p + at), "r"(at));
    memcpy(&result, r, sizeof(result));
  } else if constexpr (sizeof(result) == 32) {
    const auto* half = reinterpret_cast<const Vector<T, kVector / 2>*>(p);
    const Vector<T, kVector / 2> halves[2] = {
        LoadOrZeros(half, 2 * at), LoadOrZeros(half, at < 0 ? at : 2 * at + 1)};
    memcpy(&result, halves, sizeof(result));
  } else {
    result = {};
    if (at >= 0) result = p[at];
  }
  return result;
}

#endif  // __CUDACC__

}  // namespace jax_convbatch
