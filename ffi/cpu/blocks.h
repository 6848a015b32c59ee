// SPDX-License-Identifier: Apache-2.0
// Cutting matrix products into pieces for the threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "openblas.h"
#include "parallel.h"
#include "stopwatch.h"

namespace jax_convbatch {

// [0, size) in pieces of one length; the last may be shorter.
struct Cut {
  int64_t size, length, count;

  static Cut Pieces(int64_t size, int64_t length) {
    length = std::max<int64_t>(1, std::min(size, length));
    return {size, length, (size + length - 1) / length};
  }
  // About `parts` pieces, of a multiple of `unit`.
  static Cut Parts(int64_t size, int64_t parts, int64_t unit) {
    const int64_t length = (size + parts - 1) / parts;
    return Pieces(size, (length + unit - 1) / unit * unit);
  }
  int64_t begin(int64_t i) const { return i * length; }
  int64_t width(int64_t i) const { return std::min(length, size - begin(i)); }
};

// How the result of a product [M, N] = [M, depth] [depth, N] is cut. It follows
// from the sizes and from the BLAS's kernels alone, as its bits do.
struct ResultCut {
  Cut rows, columns;
  bool small = false;  // whether the BLAS copies nothing

  // Up to eight pieces of at least 2^24 multiply-adds (a tenth of a
  // millisecond), in the proportions that make the BLAS copy least: each piece
  // copies its rows of A and its columns of B into the order its kernel wants.
  static ResultCut Large(int64_t M, int64_t N, int64_t depth) {
    const int64_t work = M * N * depth;
    const int64_t pieces =
        std::clamp<int64_t>(work >> 24, work >> 20 ? 2 : 1, 8);
    int64_t rows = 1, columns = pieces;
    for (int64_t r = 1; r <= pieces; ++r) {
      const int64_t c = pieces / r;
      if (r * c == pieces && M * c + N * r < M * columns + N * rows) {
        rows = r;
        columns = c;
      }
    }
    return {Cut::Parts(M, rows, 16), Cut::Parts(N, columns, 16)};
  }

  // For matrices that are multiplied as they lie: many small products, of the
  // shape that the BLAS's kernel likes, where it copies nothing for them and a
  // cache holds B from one to the next. Otherwise large ones.
  static ResultCut Untransposed(int64_t M, int64_t N, int64_t depth,
                                int64_t itemsize) {
    constexpr int64_t kRows = 24, kColumns = 32, kCacheBytes = 1 << 20;
    int64_t rows = M < 4 * kRows / 3 ? M : kRows;
    const int64_t work = std::max<int64_t>(rows * depth, 1);  // of a column
    int64_t columns = WorkWithoutPacking() / work;
    if (columns < kColumns || N < kColumns / 2 ||
        N * depth * itemsize > kCacheBytes) {
      return Large(M, N, depth);
    }
    if (columns < N) {
      columns = columns / kColumns * kColumns;
    } else {
      rows *= std::clamp<int64_t>(columns / N, 1, 4);  // calls take time, too
    }
    const int64_t parts = (N + columns - 1) / columns;
    return {Cut::Pieces(M, rows), Cut::Parts(N, parts, kColumns), true};
  }

  int64_t count() const { return rows.count * columns.count; }
};

// Calls body(outer, row, rows, column, columns) for each piece of each of
// `outer` products, on all threads with the BLAS on one thread each.
template <typename Body>
void ForEachPiece(int64_t outer, const ResultCut& cut, int64_t depth,
                  Body body) {
  // So many multiply-adds pay for handing work to another thread.
  constexpr int64_t kGrainWork = 1 << 22;
  const int64_t work = cut.rows.length * cut.columns.length * depth;
  const int64_t count = outer * cut.count();
  const int64_t grain = OneThreadBlas::Possible()
                            ? kGrainWork / std::max<int64_t>(work, 1)
                            : count;
  const Stopwatch watch(&products_time);
  const OneThreadBlas one_thread;
  ParallelFor(count, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t piece = i % cut.count();
      const int64_t row = piece / cut.columns.count;
      const int64_t column = piece % cut.columns.count;
      body(i / cut.count(), cut.rows.begin(row), cut.rows.width(row),
           cut.columns.begin(column), cut.columns.width(column));
    }
  });
}

}  // namespace jax_convbatch
