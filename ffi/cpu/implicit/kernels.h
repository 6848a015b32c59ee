// SPDX-License-Identifier: Apache-2.0
// The inner loops of implicit_gemm: one table of functions for each instruction
// set and type of the arithmetic. The files that implement them are compiled
// for processors that may not be there, so nothing inline may be shared with
// them: declarations only here, and no standard headers there but <cstdint>.
#pragma once

#include <cstdint>

namespace jax_convbatch {

// Most columns of the left operand in a block, which one row of pointers, or of
// packed numbers, serves.
constexpr int64_t kBlockDepth = 256;
// Most terms that are added between loading a tile of the result and storing
// it: blocks that follow each other.
constexpr int64_t kGroupDepth = 576;
// Row length of a packed block of the left operand. The odd number of cache
// lines spreads a tile's rows over the sets of the L1.
constexpr int64_t kRowLength = kBlockDepth + 16;
// Results of so few channels would leave most lanes of a panel empty.
constexpr int kMostDots = 4;
// Output channels that one call of rows_forward or rows_wgrad forms.
constexpr int kMostOuts = 4;
// No kernel has more rows.
constexpr int kMaxRows = 14;

// How elements lie in memory; f16 and bf16 are multiplied in f32.
enum class Element : int { kF64, kF32, kF16, kBF16 };

// A piece of a packed row: zeros, elements from memory, zeros.
struct Run {
  const void* from;
  int32_t before, count, after;
};

// What happens to the result that was there.
enum class Into : int { kSet, kAdd };

// Other panels, made meanwhile from a matrix that holds `pairs` pairs of
// vectors for each row of theirs: every kFetchDepth terms the next kMoved
// pairs, of which `left` are in the first row. A row's pairs go to places
// `step` elements apart; after its last one, `from` and `to` go on by these
// turns. What is `later` elements further is asked for. Or nothing, where
// `from` is null.
constexpr int64_t kMoved = 2;
template <typename A>
struct Move {
  const A* from;
  A* to;
  int64_t step, left, pairs, from_turn, to_turn, later;
};

// A block of both operands: pointers to its rows of the left one, and panels of
// the right one, of which that of column j is at panels + j * depth. Meanwhile
// cache lines from `ahead` on are asked for, `lines` of them every kFetchDepth
// terms. All blocks of a tile have something to move, or none has; if they do,
// the tile has `rows` rows and two whole vectors of columns.
template <typename A>
struct Terms {
  int64_t depth;
  const A* panels;
  const A* left[kMaxRows];
  const char* ahead;
  int64_t lines;
  Move<A> move;
};
constexpr int64_t kFetchDepth = 32, kLineBytes = 64;

// What `count` places read, `step` elements apart, multiplied by as many rows
// of a panel from row `first` on. Padding, where `left` is null.
template <typename A>
struct Line {
  const A* left;
  int64_t step, first, count;
};

// `A` is float or double. A panel is a matrix [depth, width] whose width is
// that of two vectors, or of one where that is enough for what is left.
template <typename A>
struct Kernels {
  int vector;  // elements
  int rows;    // of the largest tile: it fills the registers

  // A tile of the result at c[i] + column gets, or is increased by, the sum of
  // `blocks` products left * panel of `column`, formed one term after the
  // other. Element (i, k) of a left operand is left[i][k], or with `by_depth`
  // left[0][k * kRowLength + i]. At most `rows` rows, any number of columns up
  // to the panels' width.
  void (*multiply)(bool by_depth, int rows, int blocks, const Terms<A>* terms,
                   int width, A* const* c, int64_t column, int columns,
                   Into into);

  // c[i][j] gets, or is increased by, the sum over lines and their places of
  // element `from` + i of what a place reads times column j of the panels,
  // which have `depth` rows. `columns` is a multiple of their width.
  void (*multiply_lines)(int rows, int lines, const Line<A>* line, int64_t from,
                         const A* panels, int64_t depth, int64_t columns,
                         A* const* c, Into into);

  // The same as `multiply` for at most `kMostDots` columns, whose terms lie in
  // the lanes of vectors: column j of a block's right operand is at panels + j
  // * depth, and depth is a multiple of the vector's length.
  void (*multiply_dots)(int rows, int blocks, const Terms<A>* terms,
                        int columns, A* const* c, Into into);

  // Row i of a block: runs[i], at to + i * kRowLength. Up to 15 elements behind
  // each run may be overwritten.
  void (*pack_runs)(Element type, const Run* runs, int64_t rows, A* to);
  // Panels whose row k is rows[k]; a panel's size is depth * 2 vectors.
  void (*pack_panels)(Element type, const void* const* rows, int64_t depth,
                      int64_t columns, A* to);
  // The same where rows[j] is column j, for `count` rows of the panels from
  // row `first` of `depth`.
  void (*pack_transposed)(Element type, const void* const* rows, int64_t depth,
                          int64_t first, int64_t count, int64_t columns, A* to);
  // to[0, count) = from[0, count), rounded to nearest even.
  void (*convert)(Element type, const A* from, int64_t count, void* to);
  // Convolution with as many input as output channels in each group, `group` of
  // them, which divides the vector's length. Of `count` pixels of an output
  // row, whose inputs are `step` elements apart: out[k] = sum over taps t and c
  // < group of pixels[t][first of k's group + c] * filter[(t * group + c) *
  // channels + k].
  void (*direct_forward)(int64_t count, int taps, const A* const* pixels,
                         int64_t step, const A* filter, int64_t channels,
                         int group, A* out, int64_t out_step);
  // Adds the same pixels' part of the filter's gradient to `sums`.
  void (*direct_wgrad)(int64_t count, int taps, const A* const* pixels,
                       int64_t step, const A* dy, int64_t dy_step, A* sums,
                       int64_t channels, int group);
  // Rows of places: element i of a term's row is what place i reads.
  // out[k * out_step + i] = sum over terms j of rows[j][i] * filter[j * outs +
  // k], of at most kMostOuts output channels. Rows are read, and `out` is
  // written, up to the end of the last vector.
  void (*rows_forward)(int64_t count, int terms, const A* const* rows,
                       const A* filter, int outs, A* out, int64_t out_step);
  // The same for many output channels, which lie side by side: out[i * out_step
  // + k], with the filter as panels of depth `terms`.
  void (*rows_outer)(int64_t count, int terms, const A* const* rows,
                     const A* panels, int64_t channels, A* out,
                     int64_t out_step);
  // Adds rows[j][i] * dy[k * dy_step + i], for all i < count, to the lanes of
  // vector j * outs + k of `sums`.
  void (*rows_wgrad)(int64_t count, int terms, const A* const* rows,
                     const A* dy, int64_t dy_step, int outs, A* sums);
  // to[i] = the sum of vector i's lanes.
  void (*lane_sums)(const A* vectors, int64_t count, A* to);
  // to[c * to_step + i] = from[i * step + c] for c < channels, i < count.
  void (*pack_planes)(Element type, const void* from, int64_t step,
                      int64_t channels, int64_t count, A* to, int64_t to_step);
  // to[i * width + k] = from[i * step + lanes[k]] for k < width.
  void (*pack_spread)(Element type, const void* from, int64_t step,
                      int64_t pixels, const int32_t* lanes, int64_t width,
                      A* to);
  // to[i * to_step + k] = rows[k * row_step + i] for k < channels, i < count.
  void (*interleave)(const A* rows, int64_t row_step, int channels,
                     int64_t count, A* to, int64_t to_step);
  // 2 * rows * vector * 2 operations a turn, none waiting for the one before.
  void (*fma_loop)(int64_t turns);
};

// What the processor has, or what JAX_CONVBATCH_ISA asks for. ChooseKernels
// must be called first; it returns why it could not, or null.
const char* ChooseKernels();
const char* InstructionSet();
template <typename A>
const Kernels<A>& ChosenKernels();

template <typename A>
struct KernelTables {
  static const Kernels<A> kPortable, kAvx2, kAvx512;
};

}  // namespace jax_convbatch
