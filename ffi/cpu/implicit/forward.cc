// SPDX-License-Identifier: Apache-2.0
#include "forward.h"

#include <algorithm>
#include <atomic>
#include <type_traits>
#include <vector>

#include "direct.h"
#include "filter.h"
#include "narrow.h"
#include "scratch.h"
#include "tasks.h"

namespace jax_convbatch {
namespace {

// Blocks of a group: packed rows of all of them fit the scratch memory.
constexpr int kMostTerms = kBlockDepth / kMaxRows;
constexpr int64_t kDotRows = 8;
// Of the image that classes read one after the other.
constexpr int64_t kSharedBytes = 1 << 20;

// Which call a thread's packed panels belong to.
std::atomic<int64_t> calls{0};

// One result: rows are places of `out`, columns its channels.
template <typename A>
class Product {
 public:
  explicit Product(const Forward& f)
      : f_(f),
        kernels_(ChosenKernels<A>()),
        reading_(f.dgrad ? DgradReading(f.g) : FpropReading(f.g)),
        channels_(f.dgrad ? f.g.C : f.g.K),
        group_channels_(channels_ / f.g.groups),
        call_(++calls),
        dots_(f.type == kNative<A> && group_channels_ <= kMostDots &&
              reading_.group_channels % kernels_.vector == 0),
        filter_(f, reading_, dots_),
        tile_(dots_ ? kDotRows : kernels_.rows) {
    int64_t work = 0;
    for (int64_t i = 0; i < reading_.count(); ++i) {
      const Columns left(reading_, i, 0);
      rows_ += left.rows();
      most_rows_ = std::max(most_rows_, left.rows());
      depth_ = std::max(depth_, left.depth());
      work += left.rows() * left.depth();
    }
    // In how many of the largest class there would be as much to do.
    const int64_t most_work = std::max<int64_t>(1, most_rows_ * depth_);
    alike_ = std::max<int64_t>(1, f.g.groups * work / most_work);
    ChooseCut(f.type != kNative<A> || reading_.group_channels < 16);
    if (dots_ && reading_.count() > 1) {
      // What all classes read stays in the L2.
      const int64_t bytes = reading_.group_channels * sizeof(A);
      row_block_ =
          std::min(row_block_, RoundUp(CeilDiv(kSharedBytes, bytes), tile_));
    }
    const int64_t bytes = rows_ * channels_ * sizeof(A);
    streams_ = in_place() && !f.epilogue && bytes >= f.stream_bytes;
    for (int64_t i = 0; i < reading_.count(); ++i) {
      const Columns left(reading_, i, 0);
      classes_.emplace_back(left, f.type, tasks_, row_block_);
      tasks_ += classes_.back().rows.count * columns_.count * f.g.groups;
    }
  }

  void Run() {
    if (DirectCovers<A>(f_.g, f_.type, f_.out_type)) return RunDirect();
    if (dots_ && classes_.size() > 1) return RunTogether();
    const int64_t work =
        std::min(row_block_, most_rows_) * columns_.length * depth_;
    ParallelFor(tasks_, Grain(work), [&](int64_t begin, int64_t end) {
      size_t index = 0;
      for (int64_t i = begin; i < end; ++i) {
        while (index + 1 < classes_.size() && classes_[index + 1].task <= i) {
          ++index;
        }
        // Tasks with the same panels follow each other.
        const Pieces& rows = classes_[index].rows;
        const int64_t task = i - classes_[index].task;
        const int64_t row = task % rows.count, rest = task / rows.count;
        const int64_t column = rest % columns_.count;
        Block(index, rest / columns_.count, rows.begin(row), rows.end(row),
              columns_.begin(column), columns_.end(column));
      }
      if (streams_) StreamFence();
    });
  }

 private:
  struct Class {
    int64_t task;  // the first
    Pieces rows;
    std::vector<ColumnBlock> blocks;
    // Where groups of blocks end, whose terms are one sum.
    std::vector<size_t> groups;
    int64_t longest = 0;  // depth of a group

    Class(const Columns& left, Element type, int64_t task, int64_t row_block)
        : task(task), rows(left.rows(), row_block), blocks(left.Blocks(type)) {
      size_t first = 0;
      for (size_t i = 0; i < blocks.size(); ++i) {
        if (i == 0 || i - first == kMostTerms ||
            blocks[i].end - blocks[first].begin > kGroupDepth) {
          first = i;
          groups.push_back(i);
        }
        groups.back() = i + 1;
        longest = std::max(longest, blocks[i].end - blocks[first].begin);
      }
    }
  };

  // The cut that should take least time. To point to an element of the image,
  // to pack it, or to pack one of the filter takes as long as some products,
  // which its block's columns or rows share; and threads wait for the last
  // task.
  void ChooseCut(bool packs) {
    const double image_cost = packs ? 6 : 2, filter_cost = 8, wait_cost = 0.01;
    const int64_t pair = 2 * kernels_.vector, threads = ThreadCount();
    // The panels of a group of blocks must fit.
    const int64_t most_columns = std::min<int64_t>(
        kMostColumns, kPanelBytes / int64_t{sizeof(A)} /
                          std::clamp<int64_t>(depth_, 1, kGroupDepth));
    double least = -1;
    for (int64_t n = 1; n <= CeilDiv(group_channels_, pair); ++n) {
      const int64_t columns = RoundUp(CeilDiv(group_channels_, n), pair);
      if (columns > most_columns) continue;
      // Panels of the whole depth are packed once by each thread.
      const bool stays = depth_ * columns * int64_t{sizeof(A)} <= kPanelBytes;
      for (int64_t each = 1; each <= 8; each *= 2) {
        int64_t rows = RoundUp(
            CeilDiv(most_rows_, CeilDiv(each * threads, n * alike_)), tile_);
        if (!in_place()) {
          const int64_t most = kSumBytes / int64_t{sizeof(A)} / columns;
          rows = std::min(rows, most / tile_ * tile_);
        }
        const int64_t tasks = CeilDiv(most_rows_, rows) * n * alike_;
        const int64_t sharing = std::min(
            most_rows_, stays ? std::max(rows, most_rows_ / threads) : rows);
        const double work = 1 + image_cost / columns +
                            filter_cost / std::max<int64_t>(sharing, 1);
        const double turns = CeilDiv(tasks, threads);
        const double cost =
            work * (turns * threads / tasks + wait_cost / turns);
        if (least >= 0 && cost >= least) continue;
        least = cost;
        columns_ = Pieces(group_channels_, columns);
        row_block_ = rows;
      }
    }
  }

  // Where a fill ends that starts with group `first` and has room for panels of
  // this depth: after one group at least.
  static size_t FillEnd(const Class& c, size_t first, int64_t room) {
    if (first == c.groups.size()) return first;
    const int64_t begin = c.blocks[first > 0 ? c.groups[first - 1] : 0].begin;
    size_t next = first + 1;
    while (next < c.groups.size() &&
           c.blocks[c.groups[next] - 1].end - begin <= room) {
      ++next;
    }
    return next;
  }

  // Whether sums are formed in the result itself.
  bool in_place() const { return f_.out_type == kNative<A>; }

  void Block(int64_t index, int64_t group, int64_t row, int64_t row_end,
             int64_t column, int64_t column_end) const {
    const Columns left(reading_, index, group);
    const Class& c = classes_[index];
    const Scratch<A> scratch = Scratch<A>::Get();
    const int64_t width = column_end - column, depth = left.depth();
    const int64_t padded = RoundUp(width, 2 * kernels_.vector);
    const int64_t most = kPanelBytes / int64_t{sizeof(A)} / padded;
    const int64_t at = group * group_channels_ + column;
    int64_t places[kMaxRows];
    A* sums[kMaxRows];
    Terms<A> terms[kMostTerms];
    // Panels that do not all fit are made while others are multiplied, where
    // that takes long enough and most of them are not the first ones.
    const bool several = FillEnd(c, 0, most) < c.groups.size();
    const int64_t half = kHalfBytes / int64_t{sizeof(A)} / padded;
    const bool moves = several && c.groups.size() > 2 && width == padded &&
                       filter_.Lies(left) && c.longest <= half &&
                       (row_end - row) / tile_ * kMoved >= kFetchDepth;
    const int64_t room = moves ? half : most;
    A* panels = scratch.panels;
    A* others = scratch.panels + half * padded;
    size_t next = 0;  // group of blocks
    do {
      // As many of them as there is room for panels.
      const size_t first = next;
      const size_t block = first > 0 ? c.groups[first - 1] : 0;
      const int64_t begin = depth > 0 ? c.blocks[block].begin : 0;
      next = FillEnd(c, first, room);
      const int64_t end = depth > 0 ? c.blocks[c.groups[next - 1] - 1].end : 0;
      const Packed wanted{call_, index, group, column, begin};
      if (!(*scratch.packed == wanted) && next > first) {
        for (size_t b = block; b < c.groups[next - 1]; ++b) {
          filter_.Pack(left, group, c.blocks[b].begin, c.blocks[b].end, column,
                       width, panels + (c.blocks[b].begin - begin) * padded);
        }
        *scratch.packed = wanted;
      }
      Mover<A> mover;
      if (moves && next < c.groups.size()) {
        const size_t last = c.groups[FillEnd(c, next, room) - 1];
        mover = filter_.Move(group, &c.blocks[c.groups[next - 1]],
                             c.blocks.data() + last, column, width, others);
      }
      Columns::Position start = left.At(row);
      for (int64_t i = row; i < row_end; i += tile_) {
        const int rows = static_cast<int>(std::min(tile_, row_end - i));
        left.Places(start, rows, places);
        for (int r = 0; r < rows; ++r) {
          sums[r] = in_place()
                        ? static_cast<A*>(f_.out) + places[r] * channels_ + at
                        : scratch.sums + (i - row + r) * padded;
        }
        if (depth == 0) Zero(rows, width, sums);
        const Columns::Position now = start;
        left.Advance(&start, rows);
        Ahead ahead;
        if (depth > 0 && i + rows < row_end) {
          ahead = moves ? left.All(f_.image, f_.type, start, tile_, begin, end)
                        : left.New(f_.image, f_.type, start, tile_);
        }
        const int64_t lines =
            CeilDiv(ahead.lines() * 2 * kernels_.vector * kFetchDepth,
                    padded * std::max<int64_t>(1, end - begin));
        size_t b = block;
        for (size_t j = first; j < next; ++j) {
          int count = 0;
          for (; b < c.groups[j]; ++b, ++count) {
            const ColumnBlock& from = c.blocks[b];
            Terms<A>& to = terms[count];
            to.depth = from.end - from.begin;
            to.panels = panels + (from.begin - begin) * padded;
            left.Point(f_.image, f_.type, now, rows, from,
                       scratch.left + count * kMaxRows * kRowLength, to.left);
          }
          MultiplyPanels(rows, count, terms, width, sums,
                         j > 0 ? Into::kAdd : Into::kSet, lines, &ahead,
                         &mover);
        }
        if (next == c.groups.size()) {
          for (int r = 0; r < rows; ++r) {
            Finish(places[r], at, width, sums[r]);
          }
        }
      }
      if (moves && next < c.groups.size()) {
        mover.Finish();
        std::swap(panels, others);
        const int64_t made = c.blocks[c.groups[next - 1]].begin;
        *scratch.packed = {call_, index, group, column, made};
      }
    } while (next < c.groups.size());
    // Later tasks look for panels in the first half.
    if (panels != scratch.panels) *scratch.packed = {};
  }

  // Sums of no terms: dgrad's, of pixels that no output reads.
  void Zero(int rows, int64_t columns, A* const* sums) const {
    for (int r = 0; r < rows; ++r) {
      if (streams_) {
        Stream(nullptr, sums[r], columns * sizeof(A));
      } else {
        std::fill_n(sums[r], columns, A(0));
      }
    }
  }

  // Makes complete sums into the result, where they are not that already.
  void Finish(int64_t place, int64_t channel, int64_t count, A* sums) const {
    if (f_.epilogue) f_.epilogue->Apply(place, channel, count, sums);
    if (in_place()) return;
    char* to = static_cast<char*>(f_.out) +
               (place * channels_ + channel) * ElementSize(f_.out_type);
    kernels_.convert(f_.out_type, sums, count, to);
  }

  // Blocks of rows, all classes one after the other: they read the same part of
  // the image, and with so few channels their panels take little time.
  void RunTogether() const {
    const int64_t classes = classes_.size(), groups = f_.g.groups;
    const int64_t blocks = CeilDiv(most_rows_, row_block_);
    const int64_t work = row_block_ * group_channels_ * depth_ * classes;
    ParallelFor(blocks * groups, Grain(work), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        for (int64_t index = 0; index < classes; ++index) {
          const Pieces& rows = classes_[index].rows;
          if (i % blocks >= rows.count) continue;
          Block(index, i / blocks, rows.begin(i % blocks), rows.end(i % blocks),
                0, group_channels_);
        }
      }
    });
  }

  // Rows of all classes, one class after the other.
  void RunDirect() const {
    const int64_t row_work =
        reading_.w[0].count * channels_ * std::max<int64_t>(depth_, 1);
    for (int64_t index = 0; index < reading_.count(); ++index) {
      const Columns left(reading_, index, 0);
      const int64_t all = DirectRows<A>(reading_, index, f_.image).count();
      // A thread takes rows that lie together, which share most of their input.
      const int64_t grain =
          std::max(Grain(row_work / 4), all / (8 * ThreadCount()));
      ParallelFor(all, grain, [&](int64_t begin, int64_t end) {
        DirectRows<A> rows(reading_, index, f_.image);
        const Scratch<A> scratch = Scratch<A>::Get();
        const Packed wanted{call_, index, 0, 0, 0};
        if (!(*scratch.packed == wanted)) {
          filter_.PackDirect(left, scratch.panels);
          *scratch.packed = wanted;
        }
        std::fill_n(scratch.sums, channels_, A(0));
        A* out = static_cast<A*>(f_.out);
        const int group = static_cast<int>(group_channels_);
        const int taps = static_cast<int>(rows.taps());
        for (int64_t row = begin; row < end; ++row) {
          rows.ForEachPart(
              row, scratch.sums,
              [&](int64_t count, int64_t place, const A* const* pixels,
                  int64_t step) {
                kernels_.direct_forward(
                    count, taps, pixels, step, scratch.panels, channels_, group,
                    out + place * channels_, rows.period() * channels_);
                for (int64_t i = 0; f_.epilogue && i < count; ++i) {
                  const int64_t at = place + i * rows.period();
                  Finish(at, 0, channels_, out + at * channels_);
                }
              });
        }
      });
    }
  }

  // Asks for `lines` lines of what comes next, now and then.
  void MultiplyPanels(int rows, int blocks, Terms<A>* terms, int64_t columns,
                      A* const* sums, Into into, int64_t lines, Ahead* ahead,
                      Mover<A>* mover) const {
    if (dots_) {
      const int few = static_cast<int>(columns);
      return kernels_.multiply_dots(rows, blocks, terms, few, sums, into);
    }
    const int pair = 2 * kernels_.vector;
    for (int64_t j = 0; j < columns; j += pair) {
      const int there = static_cast<int>(std::min<int64_t>(pair, columns - j));
      for (Terms<A>* t = terms; t != terms + blocks; ++t) {
        t->lines = lines;
        t->ahead = ahead->Take(CeilDiv(t->depth, kFetchDepth), &t->lines);
        t->move = {};
      }
      if (rows == kernels_.rows) mover->Take(terms, blocks);
      kernels_.multiply(false, rows, blocks, terms,
                        there > kernels_.vector ? pair : kernels_.vector, sums,
                        j, there, into);
    }
  }

  const Forward& f_;
  const Kernels<A>& kernels_;
  const Reading reading_;
  const int64_t channels_, group_channels_, call_;
  // Whether vectors are of terms rather than of channels.
  const bool dots_;
  const Filter<A> filter_;
  const int64_t tile_;  // rows that are multiplied at a time
  int64_t rows_ = 0, most_rows_ = 0, depth_ = 0, alike_ = 1;
  Pieces columns_{0, 0};
  int64_t row_block_ = 1, tasks_ = 0;
  bool streams_ = false;
  std::vector<Class> classes_;
};

}  // namespace

template <typename A>
void Forward::Run() const {
  const NarrowForward<A> narrow(*this);
  if (narrow.covers()) return narrow.Run();
  Product<A>(*this).Run();
}

template void Forward::Run<float>() const;
template void Forward::Run<double>() const;

}  // namespace jax_convbatch
