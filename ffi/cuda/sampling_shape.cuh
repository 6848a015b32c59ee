// What the kernels that sample share: the geometry as they see it, and how
// pixels and channels are dealt out to blocks.
#ifndef JAX_CONVBATCH_CUDA_SAMPLING_SHAPE_CUH_
#define JAX_CONVBATCH_CUDA_SAMPLING_SHAPE_CUH_

#include <cstdint>
#include <numeric>

#include "conv_geometry.h"
#include "cuda/conv_gemms.h"
#include "cuda/dtypes.h"
#include "cuda/fast_divmod.h"
#include "cuda/sampling.h"

namespace jax_convbatch {

// A tile of pixels that one block works on, so that what neighbours share stays
// in the first-level cache.
struct Tile {
  int h, w;
};

// Whatever counts channels counts vectors of them.
struct SamplingShape {
  int32_t H, W, h, w;  // the image, and the pixels that tiles cover
  int32_t taps, mine;  // channels of an offset group
  int32_t lanes;       // threads that share a pixel's channels
  Tile tile;
  int64_t channels, group_stride, row;  // strides of x and of the columns
  FastDivmod<uint32_t> cell_width, tap_radix, chunk_radix, offset_group_radix,
      tiles_h, tiles_w, group_channels;
  int32_t offset_groups;
  int64_t blocks;

  // Tiles cover the outputs, or the inputs. A block has all channels of an
  // offset group, or, `chunked`, one for each lane.
  SamplingShape(const ConvGeometry& g, int64_t samples, int64_t offset_groups,
                int64_t vector, bool inputs, Tile tile, int most_lanes,
                bool chunked)
      : H(g.H),
        W(g.W),
        h(inputs ? g.H : g.P),
        w(inputs ? g.W : g.Q),
        taps(g.taps()),
        mine(g.C / offset_groups / vector),
        lanes(1),
        tile(tile),
        channels(g.C / vector),
        cell_width(g.W + 1),
        tap_radix(g.taps()),
        offset_group_radix(offset_groups),
        group_channels(g.group_C() / vector),
        offset_groups(offset_groups) {
    const Columns columns(g, samples);
    group_stride = columns.group_stride / vector;
    row = columns.ld / g.taps() / vector;
    while (lanes < most_lanes && lanes < mine) lanes *= 2;
    const int64_t chunks = chunked ? (mine + lanes - 1) / lanes : 1;
    const int64_t down = (h + tile.h - 1) / tile.h;
    const int64_t across = (w + tile.w - 1) / tile.w;
    chunk_radix = FastDivmod<uint32_t>(chunks);
    tiles_h = FastDivmod<uint32_t>(down);
    tiles_w = FastDivmod<uint32_t>(across);
    blocks = samples * down * across * offset_groups * chunks;
  }
};

// The channels that lie together both in a column and in an offset group can be
// moved by vectors of 16 bytes, or one by one.
inline bool Vectorizes(const ConvGeometry& g, int64_t offset_groups,
                       int64_t vector) {
  return std::gcd(g.group_C(), g.C / offset_groups) % vector == 0;
}

#ifdef __CUDACC__

// What a block works on.
struct BlockWork {
  uint32_t chunk, offset_group, h, w, sample;

  __device__ explicit BlockWork(const SamplingShape& s) {
    uint32_t rest = blockIdx.x;
    chunk = TakeDigit(s.chunk_radix, rest);
    offset_group = TakeDigit(s.offset_group_radix, rest);
    w = TakeDigit(s.tiles_w, rest) * s.tile.w;
    h = TakeDigit(s.tiles_h, rest) * s.tile.h;
    sample = rest;
  }
};

// Where vector `c` of a pixel lies in the columns, but for the row.
__device__ inline int64_t InColumns(const SamplingShape& s, uint32_t c) {
  const uint32_t group = s.group_channels.Divide(c);
  return group * s.group_stride + (c - group * s.group_channels.divisor());
}

#endif  // __CUDACC__

}  // namespace jax_convbatch

#endif  // JAX_CONVBATCH_CUDA_SAMPLING_SHAPE_CUH_
