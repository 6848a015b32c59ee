// SPDX-License-Identifier: Apache-2.0
// Rows of an image as the kernels for few channels read them: packed, with
// their padding, and converted, once for all taps.
//
// A row of the result, or a block of its places where it is long, reads some
// rows of the image. They are kept in a ring: the row below shares most of
// them.
#pragma once

#include <cstdint>
#include <vector>

#include "columns.h"

namespace jax_convbatch {

// What is in memory for a pixel. With `planes`, each channel is a row of its
// own, and a row for each residue of w modulo the class's step, so that a
// term's neighbours lie side by side. Otherwise a pixel's numbers lie together:
// its channels, or, where there are `lanes`, `copies` times these channels of
// it, one set for each of a group's input channels.
struct RowLayout {
  bool planes;
  int64_t copies = 1;
  std::vector<int32_t> lanes;
};

// Of one class of a reading.
template <typename A>
class PackedRows {
 public:
  // `room` elements that the ring may take, `most` places of a block.
  PackedRows(const Reading& reading, int64_t index, const RowLayout& layout,
             int64_t room, int64_t most);

  // Places of a block; 0 where the ring would take too much room.
  int64_t block() const { return block_; }
  // Elements of the ring.
  int64_t size() const { return (slots_ + 1) * slot_; }
  // Blocks of rows, those below each other one after the other.
  int64_t count() const {
    return reading_.samples * d_.count * blocks_ * h_.count;
  }
  // Terms of a sum: taps, and channels of a group in each.
  int64_t terms() const { return taps_ * term_channels_; }
  int64_t taps() const { return taps_; }
  int64_t period() const { return w_.period; }
  // Elements between what one place and the next of a class read.
  int64_t step() const { return layout_.planes ? 1 : w_.step * pixel_; }

  // Where the ring lies, and what it is a ring of.
  void Use(const void* image, Element type, A* memory);
  struct Part {
    int64_t place, count;  // the first place; they are period() apart
  };
  // Block number `i`, with terms[group * terms() + tap * channels + c] what its
  // first place reads. Planes alone have more than one group here.
  Part Get(int64_t i, const A** terms);

 private:
  void ChooseBlock(int64_t room, int64_t most);
  const A* Row(int64_t n, int64_t d, int64_t h, int64_t slot, int64_t block);
  void Pack(const char* row, int64_t first, A* to) const;

  const Reading& reading_;
  const AxisClass &d_, &h_, &w_;
  const RowLayout& layout_;
  int64_t taps_, groups_, term_channels_, pixel_ = 0;
  std::vector<int64_t> phases_;    // residues that are read
  std::vector<int64_t> turns_;     // of each tap of w: its offset / step
  std::vector<int64_t> phase_of_;  // and its residue's number
  int64_t least_ = 0, span_ = 1;   // of turns_, or of the offsets
  int64_t ring_ = 1, slots_ = 0, slot_ = 0, length_ = 0;
  int64_t block_ = 0, blocks_ = 1;
  const char* image_ = nullptr;
  Element type_ = Element::kF32;
  A* memory_ = nullptr;
  bool zeros_ = false;
  std::vector<int64_t> held_;  // which row a slot has
};

}  // namespace jax_convbatch
