// SPDX-License-Identifier: Apache-2.0
// How the causal convolution is cut into blocks of channels and rows, and where
// the row of each tap lies.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <type_traits>
#include <vector>

#include "causal_conv1d.h"
#include "causal_conv1d_call.h"
#include "causal_conv1d_loops.h"
#include "half.h"

namespace jax_convbatch::causal_conv1d {

// Rows of a tile, where its channels fill a block.
inline constexpr int64_t kTileRows = 32;

// Stands for a row that does not count.
template <typename A>
inline constexpr A kZeros[kBlockChannels] = {};

// What one thread works in, cut into pieces that start where a cache line does.
template <typename A>
class Scratch {
 public:
  static constexpr int64_t kLine = 64;

  // Of the elements of each piece, which are then taken in this order.
  explicit Scratch(std::initializer_list<int64_t> counts) : counts_(counts) {
    int64_t bytes = kLine;
    for (int64_t count : counts) bytes += Bytes(count);
    data_.reset(new char[bytes]);
    const auto address = reinterpret_cast<uintptr_t>(data_.get());
    next_ = data_.get() + (kLine - address % kLine) % kLine;
  }

  A* Take() {
    A* piece = reinterpret_cast<A*>(next_);
    next_ += Bytes(counts_[taken_++]);
    return piece;
  }

 private:
  static int64_t Bytes(int64_t count) {
    return (count * int64_t{sizeof(A)} + kLine - 1) / kLine * kLine;
  }

  std::vector<int64_t> counts_;
  std::unique_ptr<char[]> data_;
  char* next_;
  size_t taken_ = 0;
};

// Channels are cut into blocks of about equal width; of narrow rows, `fold`
// together are as wide as a block.
struct Blocks {
  int64_t C, count, width, fold;

  explicit Blocks(int64_t channels)
      : C(channels),
        count((channels + kBlockChannels - 1) / kBlockChannels),
        width(channels),
        fold(RowsTogether(channels)) {
    if (count == 1) return;
    width = ((C + count - 1) / count + 15) / 16 * 16;
    count = (C + width - 1) / width;
  }
  int64_t lanes() const { return width * fold; }
  int64_t begin(int64_t i) const { return i * width; }
  int64_t size(int64_t i) const { return std::min(width, C - begin(i)); }
};

// The rows that `tile` positions read, one after the other: those between the
// first and the last where tiles of neighbouring taps overlap, otherwise one
// tile a tap.
struct TapTiles {
  int64_t taps, dilation, tile;

  bool overlap() const { return dilation < tile; }
  int64_t rows() const {
    return overlap() ? tile + (taps - 1) * dilation : taps * tile;
  }
  // Of the row of tap t, `i` rows after the tile's first.
  int64_t place(int64_t i, int64_t t) const {
    return i + t * (overlap() ? dilation : tile);
  }
};

// rows[t] = at(i, t). Returns for how many positions from i on, at most
// `limit`, all rows follow one another with `stride`.
template <typename A, typename At>
int64_t FindRun(int64_t taps, int64_t i, int64_t limit, int64_t stride,
                bool has_ids, const A** rows, At at) {
  for (int64_t t = 0; t < taps; ++t) rows[t] = at(i, t);
  if (!has_ids) return limit;
  int64_t run = 1;
  for (; run < limit; ++run) {
    for (int64_t t = 0; t < taps; ++t) {
      const A* expected =
          rows[t] == kZeros<A> ? kZeros<A> : rows[t] + run * stride;
      if (at(i + run, t) != expected) return run;
    }
  }
  return run;
}

// One sample from the first channel of a block; null where there is none.
template <typename T>
struct Sample {
  const T *x, *state;
  const int32_t* ids;
};

template <typename T>
Sample<T> SampleAt(const CausalConv1d& call, const T* x, const T* state,
                   const int32_t* ids, int64_t sample, int64_t channel) {
  return {
      x + sample * call.L * call.C + channel,
      call.has_state ? state + sample * call.state_rows * call.C + channel
                     : nullptr,
      call.has_ids ? ids + sample * call.xs_rows() : nullptr,
  };
}

// Where tap t of position l reads, in the type of the arithmetic.
template <typename T>
class TapRows {
 public:
  using A = Compute<T>;
  static constexpr bool kConverts = !std::is_same_v<T, A>;

  // Elements of A that Load fills.
  static int64_t BufferSize(const CausalConv1d& call, int64_t tile,
                            int64_t width) {
    return kConverts ? TapTiles{call.taps, call.dilation, tile}.rows() * width
                     : 0;
  }

  // Positions are loaded at most `tile` at a time.
  TapRows(const CausalConv1d& call, int64_t tile, A* buffer)
      : call_(call), tiles_{call.taps, call.dilation, tile}, buffer_(buffer) {}

  void Choose(const Sample<T>& sample, int64_t width) {
    sample_ = sample;
    width_ = width;
  }

  // To be called before the rows of [begin, end) are asked for.
  void Load(int64_t begin, int64_t end) {
    if constexpr (kConverts) {
      begin_ = begin;
      if (tiles_.overlap()) {
        Convert(begin, end + call_.state_rows, 0);
        return;
      }
      for (int64_t t = 0; t < call_.taps; ++t) {
        const int64_t shift = t * call_.dilation;
        Convert(begin + shift, end + shift, tiles_.place(0, t));
      }
    }
  }

  // As FindRun, of at most `fold` positions before `end`.
  int64_t Find(int64_t l, int64_t end, int64_t fold, const A** rows) const {
    int64_t limit = std::min(end - l, fold);
    for (int64_t t = 0; limit > 1 && t < call_.taps; ++t) {
      const int64_t left = call_.state_rows - l - t * call_.dilation;
      if (left > 0) limit = std::min(limit, left);
    }
    return FindRun(call_.taps, l, limit, kConverts ? width_ : call_.C,
                   call_.has_ids, rows,
                   [&](int64_t i, int64_t t) { return At(i, t); });
  }

  const Sample<T>& sample() const { return sample_; }

 private:
  void Convert(int64_t row, int64_t end, int64_t place) {
    if constexpr (kConverts) {
      // Rows without a gap are one.
      const bool whole = width_ == call_.C;
      for (int64_t rows; row < end; row += rows, place += rows) {
        const int64_t S = call_.state_rows;
        rows = whole ? (row < S ? std::min(S, end) : end) - row : 1;
        if (IsPadding(row)) continue;
        WidenRow(Row(row), buffer_ + place * width_, rows * width_);
      }
    }
  }

  bool IsPadding(int64_t row) const {
    return row < call_.state_rows && sample_.state == nullptr;
  }

  const T* Row(int64_t row) const {
    return row < call_.state_rows
               ? sample_.state + row * call_.C
               : sample_.x + (row - call_.state_rows) * call_.C;
  }

  const A* At(int64_t l, int64_t t) const {
    const int64_t row = l + t * call_.dilation;
    if (IsPadding(row)) return kZeros<A>;
    if (sample_.ids != nullptr &&
        sample_.ids[row] != sample_.ids[l + call_.state_rows]) {
      return kZeros<A>;
    }
    if constexpr (kConverts) {
      return buffer_ + tiles_.place(l - begin_, t) * width_;
    } else {
      return Row(row);
    }
  }

  const CausalConv1d& call_;
  TapTiles tiles_;
  A* buffer_;
  Sample<T> sample_{};
  int64_t width_ = 0, begin_ = 0;
};

// Calls run(T{}) with the type of x.
template <typename Run>
ffi::Error ForType(const CausalConv1d& call, Run run) {
  switch (call.dtype) {
    case ffi::F64:
      run(double{});
      break;
    case ffi::F16:
      run(Half{});
      break;
    case ffi::BF16:
      run(BFloat16{});
      break;
    default:
      run(float{});
  }
  return ffi::Error::Success();
}

// Rows of w or of the bias, `fold` times side by side.
template <typename A>
void Fold(const A* in, int64_t rows, const Blocks& blocks, A* out) {
  for (int64_t r = 0; r < rows; ++r, in += blocks.C) {
    for (int64_t i = 0; i < blocks.fold; ++i, out += blocks.C) {
      std::copy_n(in, blocks.C, out);
    }
  }
}

// w and bias of a block, each row as wide as the rows that are formed together.
template <typename A>
class BlockWeights {
 public:
  static int64_t BufferSize(const CausalConv1d& call, const Blocks& blocks) {
    return blocks.fold > 1 ? (call.taps + 1) * blocks.lanes() : 0;
  }

  BlockWeights(const CausalConv1d& call, const Blocks& blocks, const A* w,
               const A* bias, A* buffer)
      : call_(call),
        blocks_(blocks),
        all_w_(w),
        all_bias_(bias),
        buffer_(buffer) {}

  void Choose(int64_t g, int64_t block) {
    const A* first_w = all_w_ + g * call_.taps * call_.C;
    const A* first_bias = all_bias_ + g * call_.C;
    if (blocks_.fold == 1) {
      w = first_w + blocks_.begin(block);
      bias = first_bias + blocks_.begin(block);
      stride = call_.C;
      return;
    }
    if (g == g_) return;
    g_ = g;
    stride = blocks_.lanes();
    Fold(first_w, call_.taps, blocks_, buffer_);
    Fold(first_bias, 1, blocks_, buffer_ + call_.taps * stride);
    w = buffer_;
    bias = buffer_ + call_.taps * stride;
  }

  const A *w = nullptr, *bias = nullptr;
  int64_t stride = 0;

 private:
  const CausalConv1d& call_;
  const Blocks& blocks_;
  const A *all_w_, *all_bias_;
  A* buffer_;
  int64_t g_ = -1;
};

}  // namespace jax_convbatch::causal_conv1d
