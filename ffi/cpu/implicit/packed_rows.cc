// SPDX-License-Identifier: Apache-2.0
#include "packed_rows.h"

#include <algorithm>

#include "tasks.h"

namespace jax_convbatch {
namespace {

// As few places of a block as are worth a ring.
constexpr int64_t kFewPlaces = 32;

int64_t FloorDiv(int64_t a, int64_t b) { return (a - (a % b + b) % b) / b; }

// The least ring in which rows at these offsets do not meet. All rows between
// them have room in it where they are not many.
int64_t Ring(const std::vector<int64_t>& offsets) {
  if (offsets.empty()) return 1;
  const int64_t span = offsets.back() - offsets.front() + 1;
  const int64_t taps = offsets.size();
  if (span <= 2 * taps + 2) return span;
  for (int64_t ring = taps;; ++ring) {
    std::vector<bool> taken(ring);
    bool meet = false;
    for (int64_t offset : offsets) {
      const int64_t at = (offset - offsets.front()) % ring;
      meet = meet || taken[at];
      taken[at] = true;
    }
    if (!meet) return ring;
  }
}

}  // namespace

template <typename A>
PackedRows<A>::PackedRows(const Reading& reading, int64_t index,
                          const RowLayout& layout, int64_t room, int64_t most)
    : reading_(reading),
      d_(reading.d[index / (reading.h.size() * reading.w.size())]),
      h_(reading.h[index / reading.w.size() % reading.h.size()]),
      w_(reading.w[index % reading.w.size()]),
      layout_(layout),
      taps_(d_.taps.size() * h_.taps.size() * w_.taps.size()),
      groups_(layout.planes ? reading.channels / reading.group_channels : 1),
      term_channels_(layout.planes ? reading.group_channels : layout.copies) {
  for (int64_t offset : w_.offsets) {
    if (!layout_.planes) {
      turns_.push_back(offset);
      continue;
    }
    const int64_t turn = FloorDiv(offset, w_.step);
    const int64_t phase = offset - turn * w_.step;
    const auto found = std::find(phases_.begin(), phases_.end(), phase);
    phase_of_.push_back(found - phases_.begin());
    if (found == phases_.end()) phases_.push_back(phase);
    turns_.push_back(turn);
  }
  if (!turns_.empty()) {
    const auto [low, high] = std::minmax_element(turns_.begin(), turns_.end());
    least_ = *low, span_ = *high - *low + 1;
  }
  pixel_ = layout_.planes          ? 1
           : layout_.lanes.empty() ? reading.channels
                                   : static_cast<int64_t>(layout_.lanes.size());
  ring_ = Ring(h_.offsets);
  slots_ = static_cast<int64_t>(d_.taps.size()) * ring_;
  ChooseBlock(room, most);
}

template <typename A>
void PackedRows<A>::ChooseBlock(int64_t room, int64_t most) {
  const int64_t vector = ChosenKernels<A>().vector;
  int64_t pieces = CeilDiv(w_.count, most);
  for (;; ++pieces) {
    const int64_t block = CeilDiv(w_.count, std::max<int64_t>(pieces, 1));
    if (block < std::min(kFewPlaces, w_.count)) return;
    if (layout_.planes) {
      // Whole vectors of places, an odd number of them: rows of a power of two
      // would share few sets of the L1.
      length_ = RoundUp(RoundUp(block, vector) + span_ - 1, vector);
      length_ += length_ / vector % 2 == 0 ? vector : 0;
      slot_ = reading_.channels * phases_.size() * length_;
    } else {
      length_ = (block - 1) * w_.step + span_;
      // The kernels read whole vectors of them, and packing writes some more.
      slot_ = RoundUp(length_ * pixel_, vector) + vector;
    }
    if (size() <= room) {
      block_ = block;
      blocks_ = CeilDiv(w_.count, std::max<int64_t>(block, 1));
      return;
    }
    if (block == 1) return;
  }
}

template <typename A>
void PackedRows<A>::Use(const void* image, Element type, A* memory) {
  image_ = static_cast<const char*>(image);
  type_ = type;
  memory_ = memory;
  zeros_ = false;
  held_.assign(slots_, -1);
}

template <typename A>
typename PackedRows<A>::Part PackedRows<A>::Get(int64_t i, const A** terms) {
  const Axes& places = reading_.places;
  const int64_t ih = i % h_.count;
  i /= h_.count;
  const int64_t block = i % blocks_;
  i /= blocks_;
  const int64_t id = i % d_.count, n = i / d_.count;
  const int64_t d = d_.first + id * d_.period, h = h_.first + ih * h_.period;
  const int64_t first = block * block_;
  const int64_t row = ((n * places.d + d) * places.h + h) * places.w;
  const Part part{row + w_.first + first * w_.period,
                  std::min(block_, w_.count - first)};
  const int64_t step = layout_.planes
                           ? static_cast<int64_t>(phases_.size()) * length_
                       : layout_.lanes.empty() ? reading_.channels
                                               : pixel_ / layout_.copies;
  int64_t tap = 0;
  for (size_t td = 0; td < d_.taps.size(); ++td) {
    for (size_t th = 0; th < h_.taps.size(); ++th) {
      const int64_t jh = ih * h_.step + h_.offsets[th];
      const int64_t slot = td * ring_ + ((jh % ring_) + ring_) % ring_;
      const A* from = Row(n, id * d_.step + d_.offsets[td], jh, slot, block);
      for (size_t tw = 0; tw < turns_.size(); ++tw, ++tap) {
        const A* at = from + (turns_[tw] - least_) * pixel_;
        if (layout_.planes) at += phase_of_[tw] * length_;
        for (int64_t g = 0; g < groups_; ++g) {
          const A** to = terms + g * this->terms() + tap * term_channels_;
          for (int64_t c = 0; c < term_channels_; ++c, at += step) *to++ = at;
        }
      }
    }
  }
  return part;
}

template <typename A>
const A* PackedRows<A>::Row(int64_t n, int64_t d, int64_t h, int64_t slot,
                            int64_t block) {
  const Axes& size = reading_.pixels;
  if (d < 0 || d >= size.d || h < 0 || h >= size.h) {
    A* zeros = memory_ + slots_ * slot_;
    if (!zeros_) std::fill_n(zeros, slot_, A(0));
    zeros_ = true;
    return zeros;
  }
  A* to = memory_ + slot * slot_;
  const int64_t row = (n * size.d + d) * size.h + h;
  const int64_t wanted = row * blocks_ + block;
  if (held_[slot] != wanted) {
    held_[slot] = wanted;
    Pack(image_ + row * size.w * reading_.channels * ElementSize(type_),
         block * block_, to);
  }
  return to;
}

// What the places from number `first` on read of a row of the image.
template <typename A>
void PackedRows<A>::Pack(const char* row, int64_t first, A* to) const {
  const Kernels<A>& kernels = ChosenKernels<A>();
  const int64_t width = reading_.pixels.w, channels = reading_.channels;
  const int64_t element = ElementSize(type_);
  // Elements [low, high) of [0, length) that lie at pixels begin, begin + step
  // and so on of the image.
  const auto inside = [&](int64_t begin, int64_t step, int64_t length) {
    const int64_t low = std::clamp<int64_t>(
        CeilDiv(std::max<int64_t>(-begin, 0), step), 0, length);
    const int64_t high = std::clamp<int64_t>(
        begin < width ? CeilDiv(width - begin, step) : 0, low, length);
    return std::pair(low, high);
  };
  if (layout_.planes) {
    for (size_t f = 0; f < phases_.size(); ++f) {
      const int64_t begin = (first + least_) * w_.step + phases_[f];
      const auto [low, high] = inside(begin, w_.step, length_);
      const int64_t planes = phases_.size() * length_;
      A* at = to + f * length_;
      for (int64_t c = 0; c < channels; ++c) {
        std::fill_n(at + c * planes, low, A(0));
        std::fill_n(at + c * planes + high, length_ - high, A(0));
      }
      if (low == high) continue;
      kernels.pack_planes(
          type_, row + (begin + low * w_.step) * channels * element,
          w_.step * channels, channels, high - low, at + low, planes);
    }
    return;
  }
  const int64_t begin = first * w_.step + least_;
  const auto [low, high] = inside(begin, 1, length_);
  const char* from =
      low < high ? row + (begin + low) * channels * element : row;
  std::fill_n(to, low * pixel_, A(0));
  if (layout_.lanes.empty()) {
    kernels.pack_planes(type_, from, 1, 1, (high - low) * channels,
                        to + low * pixel_, 0);
  } else {
    kernels.pack_spread(type_, from, channels, high - low, layout_.lanes.data(),
                        pixel_, to + low * pixel_);
  }
  std::fill_n(to + high * pixel_, (length_ - high) * pixel_, A(0));
}

template class PackedRows<float>;
template class PackedRows<double>;

}  // namespace jax_convbatch
