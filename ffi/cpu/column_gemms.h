// SPDX-License-Identifier: Apache-2.0
// The matrix products of a slice of samples over its columns, whichever way the
// columns were made. As no product spans samples, the bits depend neither on
// the slice nor, for y and the columns' gradient, on the batch.
#pragma once

#include <algorithm>
#include <type_traits>

#include "blas.h"
#include "blocks.h"
#include "half.h"
#include "im2col.h"

namespace jax_convbatch {

// `data` in the type of the arithmetic: itself, or a converted copy in `copy`.
template <typename T>
const Compute<T>* AsCompute(const T* data, Compute<T>* copy, int64_t count) {
  if constexpr (std::is_same_v<T, Compute<T>>) {
    return data;
  } else {
    ConvertAll(data, copy, count);
    return copy;
  }
}

// Calls body(first, count) for each slice of the batch.
template <typename Body>
void ForEachSlice(const ConvGeometry& g, int64_t slice, Body body) {
  for (int64_t first = 0; first < g.N; first += slice) {
    body(first, std::min(slice, g.N - first));
  }
}

// The columns of a slice: for each sample and group a matrix of `row`-long
// rows, of which column_size() count.
template <typename A>
struct Columns {
  A* data;
  int64_t row, group_stride;

  // As im2col.h lays them out.
  static Columns Unrolled(const ConvGeometry& g, A* data) {
    return {data, g.column_size(), g.output_pixels() * g.column_size()};
  }
  // x itself, where the filter is pointwise.
  static Columns Pointwise(const ConvGeometry& g, A* data) {
    return {data, g.C, g.group_C()};
  }

  A* at(const ConvGeometry& g, int64_t n, int64_t group) const {
    return data + n * ColumnsPerSample(g) + group * group_stride;
  }
};

// y = columns w
template <typename A>
void FpropProducts(const ConvGeometry& g, int64_t count,
                   const Columns<const A>& columns, const A* w, A* y) {
  const auto cut = ResultCut::Untransposed(g.output_pixels(), g.group_K(),
                                           g.column_size(), sizeof(A));
  ForEachPiece(
      count * g.groups, cut, g.column_size(),
      [&](int64_t i, int64_t row, int64_t rows, int64_t k, int64_t ks) {
        const int64_t n = i / g.groups, group = i % g.groups;
        const int64_t channel = group * g.group_K() + k;
        Gemm<A>(false, false, rows, ks, g.column_size(),
                columns.at(g, n, group) + row * columns.row, columns.row,
                w + channel, g.K, 0,
                y + (n * g.output_pixels() + row) * g.K + channel, g.K);
      });
}

// columns = dy w^T
template <typename A>
void DgradProducts(const ConvGeometry& g, int64_t count, const A* dy,
                   const A* w, const Columns<A>& columns) {
  const auto cut =
      ResultCut::Large(g.output_pixels(), g.column_size(), g.group_K());
  ForEachPiece(
      count * g.groups, cut, g.group_K(),
      [&](int64_t i, int64_t row, int64_t rows, int64_t c, int64_t cs) {
        const int64_t n = i / g.groups, group = i % g.groups;
        const int64_t channel = group * g.group_K();
        Gemm<A>(false, true, rows, cs, g.group_K(),
                dy + (n * g.output_pixels() + row) * g.K + channel, g.K,
                w + c * g.K + channel, g.K, 0,
                columns.at(g, n, group) + row * columns.row + c, columns.row);
      });
}

// dw += columns^T dy, samples in order; the first of the batch overwrites.
template <typename A>
void WgradProducts(const ConvGeometry& g, int64_t first, int64_t count,
                   const Columns<const A>& columns, const A* dy, A* dw) {
  const auto cut =
      ResultCut::Large(g.column_size(), g.group_K(), g.output_pixels());
  ForEachPiece(
      g.groups, cut, count * g.output_pixels(),
      [&](int64_t group, int64_t c, int64_t cs, int64_t k, int64_t ks) {
        const int64_t channel = group * g.group_K() + k;
        for (int64_t n = 0; n < count; ++n) {
          Gemm<A>(true, false, cs, ks, g.output_pixels(),
                  columns.at(g, n, group) + c, columns.row,
                  dy + n * g.output_pixels() * g.K + channel, g.K,
                  first + n == 0 ? 0 : 1, dw + c * g.K + channel, g.K);
        }
      });
}

}  // namespace jax_convbatch
