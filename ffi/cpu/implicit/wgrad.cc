// SPDX-License-Identifier: Apache-2.0
#include "wgrad.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "direct.h"
#include "narrow.h"
#include "scratch.h"
#include "tasks.h"

namespace jax_convbatch {
namespace {

// Blocks of dw, as the plan counts them. A task has up to kMostBlocks of them
// on top of each other, for which dy is packed once.
constexpr int64_t kRows = 256, kColumns = 512, kMostBlocks = 4;
// Pixels that are packed at a time: a tile of x and a panel of dy fill the L1.
constexpr int64_t kPixels = 192;
// x is read where it lies if its pixels are close enough for a tile's to stay
// in the L1, beside two panels of so many pixels, and if there is enough of it
// side by side. So many rows are multiplied by all panels, and then some of
// what comes next is asked for.
constexpr int64_t kLinePixels = 128, kLineRows = 28;
constexpr int64_t kMostStepVectors = 8, kLeastLine = 7, kLeastUnit = 16;

// One result for each class: rows are columns of x, columns are output
// channels.
template <typename A>
class Product {
 public:
  Product(const Wgrad& f)
      : f_(f),
        kernels_(ChosenKernels<A>()),
        reading_(FpropReading(f.g)),
        columns_(f.g.group_K(), ColumnBlock(f.g)),
        parts_(f.parts),
        together_(parts_ > 1 && f.workspace == nullptr) {
    const bool buffered = together_ || f.type != kNative<A>;
    const int64_t blocks = CeilDiv(f.g.column_size(), kRows) * columns_.count *
                           f.g.groups * (together_ ? 1 : parts_);
    rows_ = kRows * std::clamp<int64_t>(blocks / (4 * ThreadCount()), 1,
                                        buffered ? 1 : kMostBlocks);
    for (int64_t i = 0; i < reading_.count(); ++i) {
      const Columns left(reading_, i, 0);
      int64_t tall = std::max<int64_t>(1, CeilDiv(left.depth(), rows_));
      // Tasks for all threads, of some tiles each.
      const int64_t others = columns_.count * f.g.groups *
                             (together_ ? 1 : parts_) * reading_.count();
      tall = std::max(tall, std::min(CeilDiv(ThreadCount(), others),
                                     left.depth() / (4 * kernels_.rows)));
      // An equal number for every thread, where there are few.
      if (tall > 1 && tall < 8 * ThreadCount()) {
        tall = RoundUp(tall, ThreadCount());
      }
      classes_.push_back(
          {tasks_, Pieces(left.depth(), CeilDiv(left.depth(), tall)),
           Pieces(left.rows(),
                  RoundUp(CeilDiv(left.rows(), parts_), kBlockDepth))});
      const Class& c = classes_.back();
      tasks_ +=
          c.rows.count * columns_.count * f.g.groups * (together_ ? 1 : parts_);
      work_ = std::max(work_, std::min(rows_, left.depth()) * columns_.length *
                                  (together_ ? left.rows() : c.pixels.length));
    }
  }

  void Run() {
    // Taps that no class has read nothing but zeros.
    if (Taps() < f_.g.taps()) {
      std::memset(f_.dw, 0, f_.g.w_size() * ElementSize(f_.type));
      if (parts_ > 1 && !together_) {
        std::memset(f_.workspace, 0, parts_ * f_.g.w_size() * sizeof(A));
      }
    }
    if (DirectCovers<A>(f_.g, f_.type, f_.type)) {
      RunDirect();
      if (parts_ > 1 && !together_) AddParts();
      return;
    }
    ParallelFor(tasks_, Grain(work_), [&](int64_t begin, int64_t end) {
      size_t index = 0;
      for (int64_t i = begin; i < end; ++i) {
        while (index + 1 < classes_.size() && classes_[index + 1].task <= i) {
          ++index;
        }
        RunTask(index, i - classes_[index].task);
      }
    });
    if (parts_ > 1 && !together_) AddParts();
  }

 private:
  struct Class {
    int64_t task;  // the first
    Pieces rows, pixels;
  };

  static int64_t ColumnBlock(const ConvGeometry& g) {
    const int64_t blocks = CeilDiv(g.group_K(), kColumns);
    return RoundUp(CeilDiv(g.group_K(), std::max<int64_t>(blocks, 1)), 32);
  }

  int64_t Taps() const {
    int64_t taps = 0;
    for (int64_t i = 0; i < reading_.count(); ++i) {
      taps += Columns(reading_, i, 0).taps();
    }
    return taps;
  }

  void RunTask(int64_t index, int64_t task) const {
    const Class& c = classes_[index];
    const int64_t column = task % columns_.count;
    task /= columns_.count;
    const int64_t row = task % c.rows.count;
    task /= c.rows.count;
    const int64_t group = task % f_.g.groups;
    const int64_t part = task / f_.g.groups;
    const Columns left(reading_, index, group);
    const Block block{left,
                      group,
                      c.rows.begin(row),
                      c.rows.end(row),
                      columns_.begin(column),
                      columns_.end(column)};
    const bool in_place = f_.type == kNative<A>;
    if (parts_ > 1 && !together_) {
      A* sum = part == 0 && in_place
                   ? static_cast<A*>(f_.dw)
                   : static_cast<A*>(f_.workspace) + part * f_.g.w_size();
      Sum(block, c.pixels.begin(part), c.pixels.end(part), sum, false);
    } else if (parts_ == 1 && in_place) {
      Sum(block, 0, left.rows(), static_cast<A*>(f_.dw), false);
    } else {
      SumTogether(block, c.pixels);
    }
  }

  // A part of dw: rows and columns of one class's and group's matrix.
  struct Block {
    const Columns& left;
    int64_t group, row, row_end, column, column_end;

    int64_t width() const { return column_end - column; }
  };

  // Where row k of a block's matrix starts in a filter.
  int64_t FilterRow(const Block& b, int64_t k) const {
    const int64_t channels = f_.g.group_C();
    const int64_t row =
        b.left.FilterTap(k / channels) * channels + k % channels;
    return row * f_.g.K + b.group * f_.g.group_K() + b.column;
  }

  // The sum over pixels [begin, end), in the places of a filter at `to`, or as
  // a matrix of its own.
  void Sum(const Block& b, int64_t begin, int64_t end, A* to,
           bool matrix) const {
    const Scratch<A> scratch = Scratch<A>::Get();
    const ConvGeometry& g = f_.g;
    const int64_t size = ElementSize(f_.type);
    const char* dy = static_cast<const char*>(f_.dy) +
                     (b.group * g.group_K() + b.column) * size;
    A* sums[kMostBlocks * kRows];
    for (int64_t k = b.row; k < b.row_end; ++k) {
      sums[k - b.row] =
          to + (matrix ? (k - b.row) * b.width() : FilterRow(b, k));
      if (end <= begin) std::fill_n(sums[k - b.row], b.width(), A(0));
    }
    const int64_t tall = CeilDiv(b.row_end - b.row, kRows);
    const Pieces blocks(b.row_end - b.row,
                        CeilDiv(b.row_end - b.row, std::max<int64_t>(tall, 1)));
    const bool as_it_lies = ReadsLines(b);
    const int64_t most = as_it_lies ? kLinePixels : kPixels;
    for (int64_t p = begin; p < end; p += most) {
      const int64_t count = std::min(most, end - p);
      int64_t places[kBlockDepth];
      const void* rows[kBlockDepth];
      const Columns::Position start = b.left.At(p);
      b.left.Places(start, count, places);
      for (int64_t i = 0; i < count; ++i) rows[i] = dy + places[i] * g.K * size;
      *scratch.packed = {};
      kernels_.pack_panels(f_.type, rows, count, b.width(), scratch.panels);
      if (as_it_lies) {
        MultiplyLines(b, start, count, scratch, sums,
                      p > begin ? Into::kAdd : Into::kSet);
        continue;
      }
      for (int64_t i = 0; i < blocks.count; ++i) {
        b.left.Pack(f_.x, f_.type, start, count, b.row + blocks.begin(i),
                    b.row + blocks.end(i), scratch.left);
        MultiplyTiles(blocks.end(i) - blocks.begin(i), count, b.width(),
                      scratch, sums + blocks.begin(i),
                      p > begin ? Into::kAdd : Into::kSet);
      }
    }
  }

  bool ReadsLines(const Block& b) const {
    const int64_t unit = b.left.unit();
    return f_.type == kNative<A> && unit >= kLeastUnit &&
           (unit <= kBlockDepth || !b.left.runs()) &&
           b.left.line() >= kLeastLine &&
           b.left.step() <= kMostStepVectors * kernels_.vector &&
           b.width() % (2 * kernels_.vector) == 0;
  }

  // The block's sum over `count` pixels, which are in the panels, from `start`
  // on.
  void MultiplyLines(const Block& b, const Columns::Position& start,
                     int64_t count, const Scratch<A>& scratch, A* const* sums,
                     Into into) const {
    Line<A> lines[kLinePixels];
    const int64_t unit = b.left.unit();
    Columns::Position next = start;
    b.left.Advance(&next, count);
    Ahead ahead = b.left.New(f_.x, f_.type, next, kLinePixels);
    const int64_t portion =
        CeilDiv(ahead.lines(), CeilDiv(b.row_end - b.row, kLineRows));
    int made = 0;
    for (int64_t k = b.row; k < b.row_end;) {
      const int64_t from = k % unit;
      if (from == 0 || k == b.row) {
        made = b.left.Lines(f_.x, start, count, k, scratch.left, lines);
      }
      const int64_t rows = std::min({kLineRows, unit - from, b.row_end - k});
      kernels_.multiply_lines(static_cast<int>(rows), made, lines, from,
                              scratch.panels, count, b.width(),
                              sums + (k - b.row), into);
      k += rows;
      int64_t some = portion;
      const char* line = ahead.Take(1, &some);
      for (int64_t i = 0; i < some; ++i) {
        __builtin_prefetch(line + i * kLineBytes, 0, 2);
      }
    }
  }

  void MultiplyTiles(int64_t rows, int64_t depth, int64_t columns,
                     const Scratch<A>& scratch, A* const* sums,
                     Into into) const {
    const int pair = 2 * kernels_.vector;
    Terms<A> terms{depth, scratch.panels, {}, nullptr, 0, {}};
    for (int64_t i = 0; i < rows; i += kernels_.rows) {
      terms.left[0] = scratch.left + i;
      const int tile =
          static_cast<int>(std::min<int64_t>(kernels_.rows, rows - i));
      for (int64_t j = 0; j < columns; j += pair) {
        const int there =
            static_cast<int>(std::min<int64_t>(pair, columns - j));
        kernels_.multiply(true, tile, 1, &terms,
                          there > kernels_.vector ? pair : kernels_.vector,
                          sums + i, j, there, into);
      }
    }
  }

  // All parts of a block, one after the other.
  void SumTogether(const Block& b, const Pieces& pixels) const {
    const Scratch<A> scratch = Scratch<A>::Get();
    const int64_t count = (b.row_end - b.row) * b.width();
    for (int64_t part = 0; part < parts_; ++part) {
      A* sum = part == 0 ? scratch.sums : scratch.part;
      Sum(b, pixels.begin(part), pixels.end(part), sum, true);
      if (part == 0) continue;
      for (int64_t i = 0; i < count; ++i) scratch.sums[i] += sum[i];
    }
    for (int64_t k = b.row; k < b.row_end; ++k) {
      char* to =
          static_cast<char*>(f_.dw) + FilterRow(b, k) * ElementSize(f_.type);
      kernels_.convert(f_.type, scratch.sums + (k - b.row) * b.width(),
                       b.width(), to);
    }
  }

  // Tasks are classes' parts; where there is no room for their sums, classes.
  void RunDirect() const {
    const int64_t tasks = reading_.count() * (together_ ? 1 : parts_);
    const int64_t work = f_.g.y_size() * f_.g.column_size() / tasks;
    ParallelFor(tasks, Grain(work), [&](int64_t begin, int64_t end) {
      const Scratch<A> scratch = Scratch<A>::Get();
      *scratch.packed = {};
      for (int64_t task = begin; task < end; ++task) {
        const int64_t index = task % reading_.count();
        const int64_t part = task / reading_.count();
        A* dw = static_cast<A*>(f_.dw);
        if (!together_) {
          DirectPart(index, part, scratch);
          A* sums = static_cast<A*>(f_.workspace) + part * f_.g.w_size();
          AddTaps(index, scratch.panels, part == 0 ? dw : sums, false);
          continue;
        }
        for (int64_t i = 0; i < parts_; ++i) {
          DirectPart(index, i, scratch);
          AddTaps(index, scratch.panels, dw, i > 0);
        }
      }
    });
  }

  // The sum over a part of a class's rows, [taps, C / groups, K], as panels.
  void DirectPart(int64_t index, int64_t part,
                  const Scratch<A>& scratch) const {
    const int64_t channels = f_.g.C;
    const int group = static_cast<int>(f_.g.group_C());
    DirectRows<A> rows(reading_, index, f_.x);
    const int taps = static_cast<int>(rows.taps());
    const A* dy = static_cast<const A*>(f_.dy);
    std::fill_n(scratch.sums, channels, A(0));
    std::fill_n(scratch.panels, taps * group * channels, A(0));
    const Pieces pieces(rows.count(), CeilDiv(rows.count(), parts_));
    for (int64_t row = pieces.begin(part); row < pieces.end(part); ++row) {
      rows.ForEachPart(row, scratch.sums,
                       [&](int64_t count, int64_t place, const A* const* pixels,
                           int64_t step) {
                         kernels_.direct_wgrad(count, taps, pixels, step,
                                               dy + place * channels,
                                               rows.period() * channels,
                                               scratch.panels, channels, group);
                       });
    }
  }

  // A class's sums, in the places of a filter.
  void AddTaps(int64_t index, const A* sums, A* to, bool add) const {
    const Columns left(reading_, index, 0);
    const int64_t size = f_.g.group_C() * f_.g.K;
    for (int64_t tap = 0; tap < left.taps(); ++tap, sums += size) {
      A* at = to + left.FilterTap(tap) * size;
      for (int64_t i = 0; i < size; ++i)
        at[i] = add ? at[i] + sums[i] : sums[i];
    }
  }

  void AddParts() const {
    const int64_t size = f_.g.w_size();
    const bool in_place = f_.type == kNative<A>;
    ParallelFor(size, 1 << 15, [&](int64_t begin, int64_t end) {
      const A* parts = static_cast<const A*>(f_.workspace);
      A* sum =
          in_place ? static_cast<A*>(f_.dw) : static_cast<A*>(f_.workspace);
      for (int64_t part = 1; part < parts_; ++part) {
        const A* more = parts + part * size;
        for (int64_t i = begin; i < end; ++i) sum[i] += more[i];
      }
      if (!in_place) {
        char* to = static_cast<char*>(f_.dw) + begin * ElementSize(f_.type);
        kernels_.convert(f_.type, sum + begin, end - begin, to);
      }
    });
  }

  const Wgrad& f_;
  const Kernels<A>& kernels_;
  const Reading reading_;
  const Pieces columns_;
  const int64_t parts_;
  const bool together_;
  std::vector<Class> classes_;
  int64_t tasks_ = 0, work_ = 1, rows_ = kRows;
};

}  // namespace

template <typename A>
void Wgrad::Run() const {
  const NarrowWgrad<A> narrow(*this);
  if (narrow.covers()) return narrow.Run();
  Product<A>(*this).Run();
}

template void Wgrad::Run<float>() const;
template void Wgrad::Run<double>() const;

}  // namespace jax_convbatch
