#include "forward.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "scratch.h"
#include "tasks.h"

namespace jax_convbatch {
namespace {

constexpr int64_t kMostColumns = 512;

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
        columns_(group_channels_, ColumnBlock()) {
    const int64_t size = RowBlock();
    for (int64_t i = 0; i < reading_.count(); ++i) {
      const Columns left(reading_, i, 0);
      classes_.push_back({tasks_, Pieces(left.rows(), size)});
      tasks_ += classes_.back().rows.count * columns_.count * f.g.groups;
    }
  }

  void Run() {
    ParallelFor(tasks_, Grain(work_), [&](int64_t begin, int64_t end) {
      size_t index = 0;
      for (int64_t i = begin; i < end; ++i) {
        while (index + 1 < classes_.size() && classes_[index + 1].task <= i) {
          ++index;
        }
        const Class& c = classes_[index];
        const int64_t task = i - c.task;
        const int64_t rest = task / columns_.count;
        Block(index, rest / c.rows.count, c.rows.begin(rest % c.rows.count),
              c.rows.end(rest % c.rows.count),
              columns_.begin(task % columns_.count),
              columns_.end(task % columns_.count));
      }
    });
  }

 private:
  struct Class {
    int64_t task;  // the first
    Pieces rows;
  };

  // Packing costs as much as multiplying by a few columns, or rows: blocks are
  // cut across the longer side first.
  int64_t ColumnBlock() {
    const int64_t width = 2 * kernels_.vector;
    int64_t blocks = CeilDiv(group_channels_, kMostColumns);
    int64_t rows = 0, classes = 0;
    for (int64_t i = 0; i < reading_.count(); ++i) {
      rows = std::max(rows, Columns(reading_, i, 0).rows());
      ++classes;
    }
    // Few rows: cut the columns, so that every thread gets some.
    const int64_t others =
        classes * f_.g.groups * CeilDiv(rows, 8 * kernels_.rows);
    blocks = std::max(blocks, std::min(CeilDiv(2 * ThreadCount(),
                                               std::max<int64_t>(others, 1)),
                                       CeilDiv(group_channels_, 2 * width)));
    return RoundUp(CeilDiv(group_channels_, std::max<int64_t>(blocks, 1)),
                   width);
  }

  int64_t RowBlock() {
    int64_t rows = 0, depth = 0;
    for (int64_t i = 0; i < reading_.count(); ++i) {
      const Columns left(reading_, i, 0);
      rows += left.rows();
      depth = std::max(depth, left.depth());
    }
    const int64_t tasks = std::max<int64_t>(
        1,
        8 * ThreadCount() / std::max<int64_t>(1, columns_.count * f_.g.groups));
    int64_t block = std::max<int64_t>(CeilDiv(rows, tasks), 8 * kernels_.rows);
    if (!in_place()) {
      const int64_t most = kSumBytes / int64_t{sizeof(A)} / columns_.length;
      block = std::min(block, most / kernels_.rows * kernels_.rows);
    }
    block = RoundUp(block, kernels_.rows);
    work_ = std::min(block, rows) * columns_.length * depth;
    return block;
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
    const int64_t step = most / kBlockDepth * kBlockDepth;
    const int64_t at = group * group_channels_ + column;
    int64_t places[kMaxRows];
    A* sums[kMaxRows];
    for (int64_t first = 0; first < depth || first == 0; first += step) {
      const int64_t last = std::min(depth, first + step);
      for (int64_t k = first; k < last; k += kBlockDepth) {
        PackFilter(left, group, k, std::min(last, k + kBlockDepth), column,
                   width, scratch.panels + (k - first) * padded);
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
        for (int64_t k = first; k < last; k += kBlockDepth) {
          const int64_t end = std::min(last, k + kBlockDepth);
          left.Pack(f_.image, f_.type, i, rows, k, end, scratch.left);
          MultiplyPanels(rows, end - k, scratch.left,
                         scratch.panels + (k - first) * padded, width, sums,
                         k > 0);
        }
        if (last == depth && !in_place()) {
          for (int r = 0; r < rows; ++r) {
            char* to = static_cast<char*>(f_.out) +
                       (places[r] * channels_ + at) * ElementSize(f_.out_type);
            kernels_.convert(f_.out_type, sums[r], width, to);
          }
        }
      }
    }
  }

  void MultiplyPanels(int rows, int64_t depth, const A* left, const A* panels,
                      int64_t columns, A* const* sums, bool add) const {
    const int pair = 2 * kernels_.vector;
    for (int64_t j = 0; j < columns; j += pair) {
      const int there = static_cast<int>(std::min<int64_t>(pair, columns - j));
      kernels_.multiply(false, rows, depth, left, panels + j * depth,
                        there > kernels_.vector ? pair : kernels_.vector, sums,
                        j, there, add);
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
  const int64_t channels_, group_channels_;
  const Pieces columns_;
  std::vector<Class> classes_;
  int64_t tasks_ = 0, work_ = 1;
};

}  // namespace

template <typename A>
void Forward::Run() const {
  Product<A>(*this).Run();
}

template void Forward::Run<float>() const;
template void Forward::Run<double>() const;

}  // namespace jax_convbatch
