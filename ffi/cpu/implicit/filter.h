// SPDX-License-Identifier: Apache-2.0
// The right operand of fprop and dgrad: the filter, as the columns' matrix
// wants it, packed into panels.
#pragma once

#include <algorithm>
#include <cstdint>

#include "forward.h"
#include "mover.h"

namespace jax_convbatch {

constexpr int64_t kMostColumns = 512;

template <typename A>
class Filter {
 public:
  // With `dots`, vectors are of terms rather than of channels.
  Filter(const Forward& f, const Reading& reading, bool dots)
      : f_(f),
        kernels_(ChosenKernels<A>()),
        reading_(reading),
        channels_(f.dgrad ? f.g.C : f.g.K),
        group_channels_(channels_ / f.g.groups),
        dots_(dots) {}

  // Rows [begin, end) of the filter's matrix, `width` columns from `column`.
  void Pack(const Columns& left, int64_t group, int64_t begin, int64_t end,
            int64_t column, int64_t width, A* to) const {
    const ConvGeometry& g = f_.g;
    const char* data = static_cast<const char*>(f_.filter);
    const int64_t size = ElementSize(f_.type);
    const int64_t channels = reading_.group_channels;
    if (dots_) return PackDots(left, group, begin, end, to);
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

  // Whether a class's matrix lies in memory as it is multiplied, so that a
  // Mover can make panels of it.
  bool Lies(const Columns& left) const {
    return !f_.dgrad && !dots_ && f_.type == kNative<A> &&
           left.taps() == f_.g.taps();
  }
  // Makes panels of some blocks' rows of such a matrix.
  Mover<A> Move(int64_t group, const ColumnBlock* block, const ColumnBlock* end,
                int64_t column, int64_t width, A* to) const {
    const A* from = static_cast<const A*>(f_.filter) + group * group_channels_;
    return Mover<A>(from + column, f_.g.K, block, end, width,
                    2 * kernels_.vector, to);
  }

  // [taps, input channels of a group, output channels].
  void PackDirect(const Columns& left, A* to) const {
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

 private:
  // As Pack, columns of all of the group's channels one after the other.
  void PackDots(const Columns& left, int64_t group, int64_t begin, int64_t end,
                A* to) const {
    const A* filter = static_cast<const A*>(f_.filter);
    const int64_t channels = reading_.group_channels, K = f_.g.K;
    for (int64_t j = 0; j < group_channels_; ++j) {
      for (int64_t k = begin; k < end;) {
        const int64_t tap = left.FilterTap(k / channels), c = k % channels;
        const int64_t count = std::min(channels - c, end - k);
        // dgrad swaps the channels.
        const int64_t at =
            f_.dgrad ? (tap * group_channels_ + j) * K + group * channels + c
                     : (tap * channels + c) * K + group * group_channels_ + j;
        for (int64_t i = 0; i < count; ++i) {
          *to++ = filter[at + i * (f_.dgrad ? 1 : K)];
        }
        k += count;
      }
    }
  }

  const Forward& f_;
  const Kernels<A>& kernels_;
  const Reading& reading_;
  const int64_t channels_, group_channels_;
  const bool dots_;
};

}  // namespace jax_convbatch
