#include "forward.h"

#include <algorithm>
#include <atomic>
#include <type_traits>
#include <vector>

#include "direct.h"
#include "scratch.h"
#include "tasks.h"

namespace jax_convbatch {
namespace {

constexpr int64_t kMostColumns = 512;

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
        call_(++calls) {
    for (int64_t i = 0; i < reading_.count(); ++i) {
      const Columns left(reading_, i, 0);
      rows_ += left.rows();
      most_rows_ = std::max(most_rows_, left.rows());
      depth_ = std::max(depth_, left.depth());
    }
    ChooseCut();
    const int64_t bytes = rows_ * channels_ * sizeof(A);
    const int64_t unit = kernels_.vector * sizeof(A);
    streams_ = in_place() && !f.epilogue && bytes >= f.stream_bytes &&
               reinterpret_cast<uintptr_t>(f.out) % unit == 0 &&
               group_channels_ % kernels_.vector == 0;
    for (int64_t i = 0; i < reading_.count(); ++i) {
      const Columns left(reading_, i, 0);
      classes_.push_back({tasks_, Pieces(left.rows(), row_block_)});
      tasks_ += classes_.back().rows.count * columns_.count * f.g.groups;
    }
  }

  void Run() {
    if (DirectCovers<A>(f_.g, f_.type, f_.out_type)) return RunDirect();
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
      if (streams_) kernels_.fence();
    });
  }

 private:
  struct Class {
    int64_t task;  // the first
    Pieces rows;
  };

  // The cut for which packing costs least, of those that give every thread some
  // tasks. To pack an element of the image or of the filter takes as long as
  // some products, which its block's columns or rows share.
  void ChooseCut() {
    constexpr double kImageCost = 0.15, kFilterCost = 0.45;
    const int64_t pair = 2 * kernels_.vector;
    const int64_t others = std::max<int64_t>(1, reading_.count() * f_.g.groups);
    double least = -1;
    for (int64_t n = 1; n <= CeilDiv(group_channels_, pair); ++n) {
      const int64_t columns = RoundUp(CeilDiv(group_channels_, n), pair);
      if (columns > kMostColumns) continue;
      // Panels of the whole depth are packed once by each thread.
      const bool stays = depth_ * columns * int64_t{sizeof(A)} <= kPanelBytes;
      const int64_t tasks = (stays ? 8 : 4) * ThreadCount();
      int64_t rows = RoundUp(CeilDiv(most_rows_, CeilDiv(tasks, n * others)),
                             kernels_.rows);
      rows = std::max<int64_t>(rows, 2 * kernels_.rows);
      if (!in_place()) {
        const int64_t most = kSumBytes / int64_t{sizeof(A)} / columns;
        rows = std::min(rows, most / kernels_.rows * kernels_.rows);
      }
      const int64_t sharing =
          std::min(most_rows_,
                   stays ? std::max(rows, most_rows_ / ThreadCount()) : rows);
      const double cost =
          kImageCost / columns + kFilterCost / std::max<int64_t>(sharing, 1);
      if (least >= 0 && cost >= least) continue;
      least = cost;
      columns_ = Pieces(group_channels_, columns);
      row_block_ = rows;
    }
  }

  // Whether sums are formed in the result itself.
  bool in_place() const { return f_.out_type == kNative<A>; }

  void Block(int64_t index, int64_t group, int64_t row, int64_t row_end,
             int64_t column, int64_t column_end) const {
    const Columns left(reading_, index, group);
    const Scratch<A> scratch = Scratch<A>::Get();
    const int64_t width = column_end - column, depth = left.depth();
    const int64_t padded = RoundUp(width, 2 * kernels_.vector);
    const int64_t most = kPanelBytes / int64_t{sizeof(A)} / padded;
    const int64_t at = group * group_channels_ + column;
    int64_t places[kMaxRows];
    A* sums[kMaxRows];
    const A* lefts[kMaxRows];
    // A large result that is written once need not be read into the caches.
    const Into into = streams_ && depth > 0 && left.BlockEnd(0) == depth
                          ? Into::kStream
                          : Into::kSet;
    int64_t first = 0;
    do {
      // As many blocks of columns as there is room for panels.
      int64_t last = first;
      while (last < depth && left.BlockEnd(last) - first <= most) {
        last = left.BlockEnd(last);
      }
      const Packed wanted{call_, index, group, column, first};
      if (!(*scratch.packed == wanted)) {
        for (int64_t k = first; k < last; k = left.BlockEnd(k)) {
          PackFilter(left, group, k, left.BlockEnd(k), column, width,
                     scratch.panels + (k - first) * padded);
        }
        *scratch.packed = wanted;
      }
      for (int64_t i = row; i < row_end; i += kernels_.rows) {
        const int rows =
            static_cast<int>(std::min<int64_t>(kernels_.rows, row_end - i));
        left.Places(i, rows, places);
        for (int r = 0; r < rows; ++r) {
          sums[r] = in_place()
                        ? static_cast<A*>(f_.out) + places[r] * channels_ + at
                        : scratch.sums + (i - row + r) * padded;
          if (depth == 0) std::fill_n(sums[r], width, A(0));
        }
        for (int64_t k = first; k < last; k = left.BlockEnd(k)) {
          const int64_t end = left.BlockEnd(k);
          left.Point(f_.image, f_.type, i, rows, k, end, scratch.left, lefts);
          MultiplyPanels(rows, end - k, lefts,
                         scratch.panels + (k - first) * padded, width, sums,
                         k > 0 ? Into::kAdd : into);
        }
        if (last == depth) {
          for (int r = 0; r < rows; ++r) {
            Finish(places[r], at, width, sums[r]);
          }
        }
      }
      first = last;
    } while (first < depth);
  }

  // Makes complete sums into the result, where they are not that already.
  void Finish(int64_t place, int64_t channel, int64_t count, A* sums) const {
    if (f_.epilogue) f_.epilogue->Apply(place, channel, count, sums);
    if (in_place()) return;
    char* to = static_cast<char*>(f_.out) +
               (place * channels_ + channel) * ElementSize(f_.out_type);
    kernels_.convert(f_.out_type, sums, count, to);
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
          PackDirectFilter(left, scratch.panels);
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

  // [taps, input channels of a group, output channels].
  void PackDirectFilter(const Columns& left, A* to) const {
    const A* filter = static_cast<const A*>(f_.filter);
    const int64_t group = group_channels_;
    for (int64_t tap = 0; tap < left.taps(); ++tap) {
      const A* from = filter + left.FilterTap(tap) * group * channels_;
      for (int64_t c = 0; c < group; ++c) {
        for (int64_t k = 0; k < channels_; ++k) {
          // dgrad swaps the two channels within their group.
          *to++ = f_.dgrad ? from[k % group * channels_ + k / group * group + c]
                           : from[c * channels_ + k];
        }
      }
    }
  }

  void MultiplyPanels(int rows, int64_t depth, const A* const* left,
                      const A* panels, int64_t columns, A* const* sums,
                      Into into) const {
    const int pair = 2 * kernels_.vector;
    for (int64_t j = 0; j < columns; j += pair) {
      const int there = static_cast<int>(std::min<int64_t>(pair, columns - j));
      kernels_.multiply(false, rows, depth, left, panels + j * depth,
                        there > kernels_.vector ? pair : kernels_.vector, sums,
                        j, there, into);
    }
  }

  // Rows [begin, end) of the filter's matrix, `width` columns from `column`.
  void PackFilter(const Columns& left, int64_t group, int64_t begin,
                  int64_t end, int64_t column, int64_t width, A* to) const {
    const ConvGeometry& g = f_.g;
    const char* data = static_cast<const char*>(f_.filter);
    const int64_t size = ElementSize(f_.type);
    const int64_t channels = reading_.group_channels;
    const void* rows[std::max(kMostColumns, kBlockDepth)];
    for (int64_t k = begin; k < end;) {
      const int64_t from = k % channels;
      const int64_t count = std::min(channels - from, end - k);
      const int64_t tap = left.FilterTap(k / channels);
      if (!f_.dgrad) {
        const int64_t first = group * group_channels_ + column;
        for (int64_t i = 0; i < count; ++i) {
          const int64_t row = tap * channels + from + i;
          rows[k - begin + i] = data + (row * g.K + first) * size;
        }
        k += count;
        continue;
      }
      // Transposed: a column of this matrix is a row of the filter's.
      for (int64_t j = 0; j < width; ++j) {
        const int64_t row = tap * group_channels_ + column + j;
        rows[j] = data + (row * g.K + group * channels + from) * size;
      }
      kernels_.pack_transposed(f_.type, rows, end - begin, k - begin, count,
                               width, to);
      k += count;
    }
    if (!f_.dgrad) {
      kernels_.pack_panels(f_.type, rows, end - begin, width, to);
    }
  }

  const Forward& f_;
  const Kernels<A>& kernels_;
  const Reading reading_;
  const int64_t channels_, group_channels_, call_;
  int64_t rows_ = 0, most_rows_ = 0, depth_ = 0;
  Pieces columns_{0, 0};
  int64_t row_block_ = 1, tasks_ = 0;
  bool streams_ = false;
  std::vector<Class> classes_;
};

}  // namespace

template <typename A>
void Forward::Run() const {
  Product<A>(*this).Run();
}

template void Forward::Run<float>() const;
template void Forward::Run<double>() const;

}  // namespace jax_convbatch
