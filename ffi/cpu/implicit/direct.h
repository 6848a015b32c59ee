// SPDX-License-Identifier: Apache-2.0
// Depthwise and nearly depthwise convolution, without a matrix product: a group
// of few channels would leave most lanes of a panel empty.
#pragma once

#include <cstdint>
#include <vector>

#include "columns.h"

namespace jax_convbatch {

// Whether the direct kernels cover a convolution of elements in memory of type
// `type`, with sums of type `A` that are stored as `out_type`.
template <typename A>
bool DirectCovers(const ConvGeometry& g, Element type, Element out_type);

// Rows of one class of a result: all places that share everything but w.
template <typename A>
class DirectRows {
 public:
  // `image` is what the reading reads.
  DirectRows(const Reading& reading, int64_t index, const void* image);

  int64_t count() const;
  int64_t taps() const { return pixels_.size(); }
  // Calls body(places, place, pixels, step) for parts of row `row` that cover
  // it: `places` places that start with `place` of the result and are
  // `period()` apart, and where their taps' pixels start. `zeros` is a pixel of
  // padding.
  template <typename Body>
  void ForEachPart(int64_t row, const A* zeros, Body body);
  int64_t period() const { return w_.period; }

 private:
  const Reading& reading_;
  const AxisClass &d_, &h_, &w_;
  const A* image_;
  std::vector<const A*> rows_, pixels_;
};

template <typename A>
template <typename Body>
void DirectRows<A>::ForEachPart(int64_t row, const A* zeros, Body body) {
  const Axes &places = reading_.places, &size = reading_.pixels;
  const int64_t channels = reading_.channels;
  const int64_t ih = row % h_.count, id = row / h_.count % d_.count;
  const int64_t n = row / (h_.count * d_.count);
  const int64_t d = d_.first + id * d_.period, h = h_.first + ih * h_.period;
  const int64_t first =
      ((n * places.d + d) * places.h + h) * places.w + w_.first;
  rows_.clear();
  bool whole = true;
  for (int64_t td : d_.offsets) {
    for (int64_t th : h_.offsets) {
      const int64_t jd = id * d_.step + td, jh = ih * h_.step + th;
      const bool there = jd >= 0 && jd < size.d && jh >= 0 && jh < size.h;
      whole = whole && there;
      rows_.push_back(there ? image_ + ((n * size.d + jd) * size.h + jh) *
                                           size.w * channels
                            : nullptr);
    }
  }
  const auto part = [&](int64_t begin, int64_t count) {
    int64_t t = 0;
    for (const A* row : rows_) {
      for (int64_t tw : w_.offsets) {
        const int64_t jw = begin * w_.step + tw;
        const bool there = row && jw >= 0 && jw < size.w;
        pixels_[t++] = there ? row + jw * channels : zeros;
      }
    }
    body(count, first + begin * w_.period, pixels_.data(), w_.step * channels);
  };
  // In between no tap reads padding, and the taps' pixels advance together.
  int64_t low = w_.count, high = w_.count;
  if (whole && !w_.offsets.empty()) {
    const int64_t least = w_.offsets.front(), most = w_.offsets.back();
    low = least >= 0 ? 0 : (-least + w_.step - 1) / w_.step;
    high = most >= size.w ? 0 : (size.w - 1 - most) / w_.step + 1;
    high = high < w_.count ? high : w_.count;
    if (low >= high) low = high = w_.count;
  }
  for (int64_t i = 0; i < low; ++i) part(i, 1);
  if (low < high) part(low, high - low);
  for (int64_t i = high; i < w_.count; ++i) part(i, 1);
}

}  // namespace jax_convbatch
