// SPDX-License-Identifier: Apache-2.0
// How a product is cut into tasks for the threads. Every sum is formed in one
// task and in one order, so no bit depends on the cut.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/parallel.h"

namespace jax_convbatch {

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t RoundUp(int64_t a, int64_t b) { return CeilDiv(a, b) * b; }

// [0, size) in pieces of `length`, a multiple of some unit; the last is
// shorter.
struct Pieces {
  int64_t size, length, count;

  Pieces(int64_t size, int64_t length)
      : size(size),
        length(length),
        count(CeilDiv(size, std::max<int64_t>(length, 1))) {}
  int64_t begin(int64_t i) const { return i * length; }
  int64_t end(int64_t i) const { return std::min(size, begin(i) + length); }
};

// About so many multiply-adds pay for waking another thread up.
constexpr int64_t kTaskWork = 1 << 20;

// Tasks of `work` multiply-adds that one thread takes at a time.
inline int64_t Grain(int64_t work) {
  return std::max<int64_t>(1, kTaskWork / std::max<int64_t>(work, 1));
}

}  // namespace jax_convbatch
