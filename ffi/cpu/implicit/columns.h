// SPDX-License-Identifier: Apache-2.0
// The left operand of implicit_gemm: a matrix whose rows are places of a result
// and whose columns are what these read from an image. It is never in memory;
// blocks of it are packed when they are multiplied.
//
// fprop reads x and makes y, dgrad reads dy and makes dx, by one rule for each
// axis: place i reads pixel j with tap t where
//
//   j * denominator == i * numerator + shift + t * tap_step.
//
// A denominator over 1 (the input dilation of fprop, the stride of dgrad) makes
// most taps miss at any one place; which of them hit repeats with a period. The
// places of one residue class use the same taps, and the pixels that these read
// advance by a constant step: each class is a dense product of its own, in
// which nothing is multiplied by the zeros between pixels.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "conv_geometry.h"
#include "kernels.h"

namespace jax_convbatch {

// Bytes of an element in memory.
inline int64_t ElementSize(Element type) {
  return type == Element::kF64 ? 8 : type == Element::kF32 ? 4 : 2;
}

// The element type that sums of type `A` have in memory.
template <typename A>
constexpr Element kNative = sizeof(A) == 8 ? Element::kF64 : Element::kF32;

// The places first, first + period, ... of an axis. Place number u of these
// reads, with tap taps[q], pixel u * step + offsets[q]; offsets ascend.
struct AxisClass {
  int64_t first, period, count, step;
  std::vector<int64_t> taps, offsets;
  bool adjacent;  // whether each offset is one more than the one before
};

struct AxisRule {
  int64_t places, pixels, taps, numerator, denominator, shift, tap_step;

  std::vector<AxisClass> Classes() const;
};

// All classes of a result, and the image that they read.
struct Reading {
  std::vector<AxisClass> d, h, w;
  int64_t samples;
  Axes places, pixels;  // of one sample of the result, of the image
  int64_t R, S;         // of the filter
  int64_t channels, group_channels;  // of the image

  // Number of classes that have places.
  int64_t count() const { return d.size() * h.size() * w.size(); }
};

Reading FpropReading(const ConvGeometry& g);
Reading DgradReading(const ConvGeometry& g);

// Columns [begin, end) of a matrix, part of a run: taps that lie side by side
// in memory, the first of which reads the pixel at these offsets from where a
// row starts. The run's column number `from` is the block's first. Blocks of
// short runs may have several of them, and then their offsets mean nothing.
struct ColumnBlock {
  int64_t begin, end, from, d, h, w;
};

// What will be read next, to be asked for in portions: a processor that sees a
// dozen rows read at once does not foresee the next dozen.
class Ahead {
 public:
  void Add(const void* from, int64_t bytes) {
    if (bytes <= 0) return;
    const char* at = static_cast<const char*>(from);
    if (count_ > 0) {
      // What goes on where the last one ends, or before, lengthens it.
      Span& last = spans_[count_ - 1];
      const int64_t more = at + bytes - (last.from + last.bytes);
      if (at >= last.from && at <= last.from + last.bytes) {
        if (more <= 0) return;
        last.bytes += more;
        lines_ += more / kLineBytes;
        return;
      }
    }
    if (count_ == kMost) return;
    spans_[count_++] = {at, bytes};
    lines_ += bytes / kLineBytes + 1;
  }
  int64_t lines() const { return lines_; }
  // Where to go on `times` times, with up to `*lines` lines each. It ends where
  // a span does and leaves out the rest of what was asked for.
  const char* Take(int64_t times, int64_t* lines) {
    if (next_ == count_) {
      *lines = 0;
      return nullptr;
    }
    const char* from = spans_[next_].from + at_;
    const int64_t rest = spans_[next_].bytes - at_ + kLineBytes - 1;
    *lines = std::min(*lines, (rest / kLineBytes + times - 1) / times);
    at_ += *lines * times * kLineBytes;
    if (at_ >= spans_[next_].bytes) ++next_, at_ = 0;
    return from;
  }

 private:
  struct Span {
    const char* from;
    int64_t bytes;
  };
  static constexpr int kMost = 2 * kMaxRows;
  Span spans_[kMost];
  int count_ = 0, next_ = 0;
  int64_t at_ = 0, lines_ = 0;
};

// The matrix of one class and group.
class Columns {
 public:
  Columns(const Reading& reading, int64_t index, int64_t group);

  int64_t rows() const { return rows_; }
  int64_t depth() const { return taps_ * channels_; }
  int64_t taps() const { return taps_; }

  // The filter's tap, (t * R + r) * S + s, that columns tap * channels and so
  // on belong to.
  int64_t FilterTap(int64_t tap) const;
  // Where a row is among the places of its class.
  struct Position {
    int64_t n, d, h, w;
  };
  Position At(int64_t row) const;
  void Advance(Position* at, int64_t rows) const;
  // The place, counted over the whole result, of `count` rows from `at` on.
  void Places(Position at, int64_t count, int64_t* places) const;
  // All columns, in blocks no longer than kBlockDepth. Short runs of elements
  // that are not multiplied as they lie in memory share a block.
  std::vector<ColumnBlock> Blocks(Element type) const;
  // `count` rows from `at` on, columns [begin, end), at `to`, with row length
  // kRowLength. At most kBlockDepth of either.
  template <typename A>
  void Pack(const void* image, Element type, const Position& at, int64_t count,
            int64_t begin, int64_t end, A* to) const;
  // The same for a block of at most kMaxRows rows from `at` on, as pointers:
  // into the image itself where that holds all of a row, and to packed rows at
  // `to` elsewhere.
  template <typename A>
  void Point(const void* image, Element type, const Position& at, int64_t count,
             const ColumnBlock& block, A* to, const A** rows) const;

  // A row's columns as they lie in memory: those of one tap, or of a run where
  // a tap has few channels.
  int64_t unit() const { return unit_taps() * channels_; }
  // Whether a unit is a run, of which some places read a part.
  bool runs() const { return unit_taps() > 1; }
  // Places of a line, and elements from what one reads to what the next does.
  int64_t line() const { return w_.count; }
  int64_t step() const { return w_.step * reading_.channels; }
  // What `count` rows from `at` on read with the unit of column k, part of a
  // line after the other; returns how many, at most `count`. What is partly in
  // the padding is packed at `to`, of row length kRowLength.
  template <typename A>
  int Lines(const void* image, Position at, int64_t count, int64_t k, A* to,
            Line<A>* lines) const;

  // What `count` rows from `at` on read of the image that the rows above them,
  // in h, did not.
  Ahead New(const void* image, Element type, Position at, int64_t count) const;
  // All that they read of it in columns [begin, end).
  Ahead All(const void* image, Element type, Position at, int64_t count,
            int64_t begin, int64_t end) const;

 private:
  // Where a tap reads, from the pixel that a row starts from.
  struct Offsets {
    int64_t d, h, w;
  };
  Offsets OffsetsOf(int64_t tap) const;
  Run RunOf(const Position& at, const Offsets& tap, const char* data,
            int64_t element, int64_t from, int64_t until) const;

  int64_t unit_taps() const;

  const Reading& reading_;
  const AxisClass &d_, &h_, &w_;
  int64_t group_, channels_, rows_, taps_;
  // A run: taps that lie side by side in memory.
  int64_t run_taps_, run_;
};

}  // namespace jax_convbatch
