// SPDX-License-Identifier: Apache-2.0
// Positions as kernels read them.
#pragma once

#include <cstdint>

#include "conv_geometry.h"
#include "cuda/common/fast_divmod.h"
#include "cuda/common/floats.h"
#include "cuda/common/positions.h"

namespace jax_convbatch {

// Of a position: the upper left one of its four pixels, and their weights.
template <typename A>
struct Position {
  bool inside;  // [-1, H) x [-1, W)
  int h, w;
  A weights[4];
};

// The geometry that positions take.
struct PositionGrid {
  int32_t H, W, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
  FastDivmod<uint32_t> filter_width;  // S
  FastDivmod<uint32_t> cell_width;    // W + 1

  explicit PositionGrid(const ConvGeometry& g)
      : H(g.H),
        W(g.W),
        stride_h(g.stride.h),
        stride_w(g.stride.w),
        pad_h(g.pad.h),
        pad_w(g.pad.w),
        dilation_h(g.filter_dilation.h),
        dilation_w(g.filter_dilation.w),
        filter_width(g.S),
        cell_width(g.W + 1) {}
};

#ifdef __CUDACC__

template <typename T, int kCount, typename A>
__device__ __forceinline__ void LoadAs(const void* from, int64_t at,
                                       A (&to)[kCount]) {
  const auto read = static_cast<const Vector<T, kCount>*>(from)[at];
#pragma unroll
  for (int i = 0; i < kCount; ++i) to[i] = Convert<A>(read.values[i]);
}

struct Cell {
  bool inside;
  int h, w;  // the upper left pixel, either may be -1
};

// Whatever `cell` is, none is inside that the image has not.
__device__ __forceinline__ Cell CellAt(const PositionGrid& grid, int cell) {
  uint32_t row = cell;
  const int w = static_cast<int>(TakeDigit(grid.cell_width, row)) - 1;
  const int h = static_cast<int>(row) - 1;
  return {cell >= 0 && h < grid.H, h, w};
}

// What an entry has in memory where positions come from offsets.
template <typename A>
struct Displacement {
  A h, w, mask;
};

template <typename T>
__device__ __forceinline__ Displacement<Accumulator<T>> LoadDisplacement(
    const Positions& from, int64_t entry) {
  using A = Accumulator<T>;
  A offset[2], mask[1] = {A{1}};
  if (from.narrow_offset) {
    LoadAs<T>(from.offset, entry, offset);
  } else {
    LoadAs<float>(from.offset, entry, offset);
  }
  if (from.mask != nullptr) {
    if (from.narrow_mask) {
      LoadAs<T>(from.mask, entry, mask);
    } else {
      LoadAs<float>(from.mask, entry, mask);
    }
  }
  return {offset[0], offset[1], mask[0]};
}

// Of tap `tap` of output pixel (p, q). The arithmetic of _deform/sampling.py:
// nothing in it can be contracted, so that the bits are the same. Weights are 0
// where the position is not inside.
template <typename A>
__device__ __forceinline__ Position<A> Displaced(const PositionGrid& grid,
                                                 const Displacement<A>& by,
                                                 int p, int q, uint32_t tap) {
  Position<A> at{false, 0, 0, {}};
  uint32_t r = tap;
  const int s = static_cast<int>(TakeDigit(grid.filter_width, r));
  const int base_h =
      p * grid.stride_h - grid.pad_h + static_cast<int>(r) * grid.dilation_h;
  const int base_w = q * grid.stride_w - grid.pad_w + s * grid.dilation_w;
  const A h = by.h + static_cast<A>(base_h);
  const A w = by.w + static_cast<A>(base_w);
  // False for nan.
  at.inside = h >= A{-1} && h < static_cast<A>(grid.H) && w >= A{-1} &&
              w < static_cast<A>(grid.W);
  if (!at.inside) return at;
  const A h0 = floor(h), w0 = floor(w);
  at.h = static_cast<int>(h0), at.w = static_cast<int>(w0);
  const A low_h = h - h0, low_w = w - w0;
  const A high_h = A{1} - low_h, high_w = A{1} - low_w;
  at.weights[0] = high_h * high_w * by.mask;
  at.weights[1] = high_h * low_w * by.mask;
  at.weights[2] = low_h * high_w * by.mask;
  at.weights[3] = low_h * low_w * by.mask;
  return at;
}

// Of number `entry` in `from`, where x has type T: the same, or a cell.
template <typename T>
__device__ __forceinline__ Position<Accumulator<T>> PositionOf(
    const PositionGrid& grid, const Positions& from, int p, int q, uint32_t tap,
    int64_t entry) {
  using A = Accumulator<T>;
  if (from.cells == nullptr) {
    return Displaced(grid, LoadDisplacement<T>(from, entry), p, q, tap);
  }
  const Cell cell = CellAt(grid, from.cells[entry]);
  Position<A> at{cell.inside, cell.h, cell.w, {}};
  if (cell.inside) LoadAs<A>(from.corners, entry, at.weights);
  return at;
}

#endif  // __CUDACC__

}  // namespace jax_convbatch
