// SPDX-License-Identifier: Apache-2.0
// Convolution of few channels, without a matrix product: images of one to eight
// channels, one to four channels in and many out, and groups of few channels
// that direct.h does not cover. All types; rows are packed (packed_rows.h).
#pragma once

#include <cstdint>
#include <vector>

#include "forward.h"
#include "packed_rows.h"
#include "wgrad.h"

namespace jax_convbatch {

// What the lanes of a vector are: places of a row of the result, one of its
// channels at a time; its channels, where each input channel is multiplied by
// all of them; its channels, each of them multiplied by its own group's.
enum class NarrowLanes { kNone, kPlaces, kOutputs, kGroups };

struct Narrow {
  NarrowLanes lanes = NarrowLanes::kNone;
  RowLayout layout;
  // In kGroups, channels that a kernel spreads over their group's lanes.
  int group = 1;
  // Of a block of places.
  int64_t most_places = 0;
};

// fprop and dgrad.
template <typename A>
class NarrowForward {
 public:
  explicit NarrowForward(const Forward& f);

  bool covers() const { return narrow_.lanes != NarrowLanes::kNone; }
  void Run() const;

 private:
  std::vector<A> PackFilter(int64_t index, const A* filter) const;
  void RunClass(int64_t index, const A* filter) const;
  void Store(int64_t place, int64_t period, int64_t count, A* z) const;

  const Forward& f_;
  const ConvGeometry g_;
  const Reading reading_;
  const int64_t outs_;  // channels of the result
  Narrow narrow_;
};

template <typename A>
class NarrowWgrad {
 public:
  explicit NarrowWgrad(const Wgrad& f);

  bool covers() const { return narrow_.lanes != NarrowLanes::kNone; }
  void Run() const;

 private:
  void Part(int64_t index, int64_t part, A* sums) const;
  void AddTaps(int64_t index, const A* sums, A* to, bool add) const;

  const Wgrad& f_;
  const ConvGeometry g_;
  const Reading reading_;
  Narrow narrow_;
};

}  // namespace jax_convbatch
