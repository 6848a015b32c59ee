// SPDX-License-Identifier: Apache-2.0
// Each thread's packed blocks: less than 4 MiB, made once and kept.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#include "kernels.h"

namespace jax_convbatch {

// The panels of a block should stay in the L2, with the results beside them.
constexpr int64_t kPanelBytes = 3 << 18;
// Panels that are multiplied while the next ones are made: each has a half.
constexpr int64_t kHalfBytes = 1 << 19;
constexpr int64_t kBothBytes = 2 * kHalfBytes;
static_assert(kPanelBytes <= kBothBytes, "");
constexpr int64_t kSumBytes = 1 << 20;

// Which panels a thread has packed last. `call` tells calls apart.
struct Packed {
  int64_t call = 0, index = 0, group = 0, column = 0, first = 0;

  bool operator==(const Packed& o) const {
    return call == o.call && index == o.index && group == o.group &&
           column == o.column && first == o.first;
  }
};

template <typename A>
struct Scratch {
  A *left, *panels, *sums, *part;
  Packed* packed;

  static Scratch Get() {
    constexpr int64_t kLeft = kBlockDepth * kRowLength * sizeof(double);
    struct Free {
      void operator()(char* at) const { std::free(at); }
    };
    thread_local std::unique_ptr<char, Free> memory;
    if (!memory) {
      memory.reset(static_cast<char*>(std::aligned_alloc(
          4096, (kLeft + kBothBytes + 2 * kSumBytes + 4095) / 4096 * 4096)));
      if (!memory) throw std::bad_alloc();
    }
    thread_local Packed packed;
    char* at = memory.get();
    return {reinterpret_cast<A*>(at), reinterpret_cast<A*>(at + kLeft),
            reinterpret_cast<A*>(at + kLeft + kBothBytes),
            reinterpret_cast<A*>(at + kLeft + kBothBytes + kSumBytes), &packed};
  }
};

}  // namespace jax_convbatch
