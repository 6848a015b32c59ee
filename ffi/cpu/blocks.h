// Cutting matrix products into pieces for the threads.
#ifndef JAX_CONVBATCH_CPU_BLOCKS_H_
#define JAX_CONVBATCH_CPU_BLOCKS_H_

#include <algorithm>
#include <cstdint>

#include "blas_threads.h"
#include "parallel.h"
#include "stopwatch.h"

namespace jax_convbatch {

// [0, size) in about `parts` pieces; the last may be shorter. A multiple of 16
// is what the BLAS's kernels like.
struct Cut {
  int64_t size, length, count;

  Cut(int64_t size, int64_t parts) : size(size) {
    length = (size + parts - 1) / parts;
    length = std::max<int64_t>(1, std::min(size, (length + 15) / 16 * 16));
    count = (size + length - 1) / length;
  }
  int64_t begin(int64_t i) const { return i * length; }
  int64_t width(int64_t i) const { return std::min(length, size - begin(i)); }
};

// How the result of a product [M, N] = [M, depth] [depth, N] is cut. It follows
// from the sizes alone: no bit depends on the machine.
struct ResultCut {
  Cut rows, columns;

  ResultCut(int64_t M, int64_t N, int64_t depth)
      : ResultCut(M, N, Pieces(M, N, depth)) {}
  int64_t count() const { return rows.count * columns.count; }

 private:
  struct Parts {
    int64_t rows, columns;
  };

  ResultCut(int64_t M, int64_t N, Parts parts)
      : rows(M, parts.rows), columns(N, parts.columns) {}

  // Up to eight pieces of at least 2^24 multiply-adds (a tenth of a
  // millisecond), in the proportions that make the BLAS copy least: each piece
  // copies its rows of A and its columns of B into the order its kernel wants.
  static Parts Pieces(int64_t M, int64_t N, int64_t depth) {
    const int64_t work = M * N * depth;
    const int64_t pieces =
        std::clamp<int64_t>(work >> 24, work >> 20 ? 2 : 1, 8);
    Parts best{1, pieces};
    for (int64_t r = 1; r <= pieces; ++r) {
      const int64_t c = pieces / r;
      if (r * c == pieces && M * c + N * r < M * best.columns + N * best.rows) {
        best = {r, c};
      }
    }
    return best;
  }
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

#endif  // JAX_CONVBATCH_CPU_BLOCKS_H_
