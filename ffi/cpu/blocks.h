// Cutting matrix products into pieces for the threads.
#ifndef JAX_CONVBATCH_CPU_BLOCKS_H_
#define JAX_CONVBATCH_CPU_BLOCKS_H_

#include <algorithm>
#include <cstdint>

#include "blas_threads.h"
#include "parallel.h"

namespace jax_convbatch {

// [0, size) in `count` pieces of `length` items; the last may be shorter.
struct Cut {
  int64_t size, length, count;

  // Into about `parts` pieces of at least `least` items, a multiple of 16, the
  // number of rows that the BLAS's kernels like.
  Cut(int64_t size, int64_t parts, int64_t least) : size(size) {
    length = std::max(least, (size + parts - 1) / parts);
    length = std::max<int64_t>(1, std::min(size, (length + 15) / 16 * 16));
    count = (size + length - 1) / length;
  }
  int64_t begin(int64_t i) const { return i * length; }
  int64_t width(int64_t i) const { return std::min(length, size - begin(i)); }
};

// A product's result [M, N] cut in rows and, where those pieces are few, in
// columns too. The cut follows from M and N alone: no bit depends on the
// machine. Rows first: each piece of columns reads and packs all rows of A.
struct ResultCut {
  Cut rows, columns;

  ResultCut(int64_t M, int64_t N, int64_t least_rows)
      : rows(M, 8, least_rows), columns(N, rows.count < 4 ? 4 : 1, 64) {}
  int64_t count() const { return rows.count * columns.count; }
};

// Calls body(outer, row, rows, column, columns) for each piece of each of
// `outer` products, on all threads with the BLAS on one thread each.
template <typename Body>
void ForEachPiece(int64_t outer, const ResultCut& cut, int64_t depth,
                  Body body) {
  // So many multiply-adds pay for handing work to another thread.
  constexpr int64_t kGrainWork = 1 << 20;
  const int64_t work = cut.rows.length * cut.columns.length * depth;
  const int64_t count = outer * cut.count();
  const int64_t grain = OneThreadBlas::Possible()
                            ? kGrainWork / std::max<int64_t>(work, 1)
                            : count;
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
