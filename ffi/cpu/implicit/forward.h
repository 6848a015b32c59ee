// SPDX-License-Identifier: Apache-2.0
// fprop and dgrad of implicit_gemm: out = columns(image) * filter, class by
// class.
#pragma once

#include "columns.h"
#include "cpu/streaming.h"

namespace jax_convbatch {

// What a layer does to its convolution's sums while they are in the cache.
class RowEpilogue {
 public:
  virtual ~RowEpilogue() = default;
  // Turns the sums of `count` channels from `channel` on, of one place of the
  // result, into what is stored, in the type of the arithmetic.
  virtual void Apply(int64_t place, int64_t channel, int64_t count,
                     void* sums) const = 0;
  // The same for all channels of `places` places that follow each other.
  virtual void ApplyAll(int64_t place, int64_t places, void* sums) const = 0;
};

struct Forward {
  const ConvGeometry& g;
  bool dgrad;
  const void *image, *filter;
  Element type;  // of both
  void* out;
  Element out_type;
  // From this size on, a result's zeros bypass the caches.
  int64_t stream_bytes = kStreamBytes;
  const RowEpilogue* epilogue = nullptr;

  // `A` is the type of the arithmetic.
  template <typename A>
  void Run() const;
};

}  // namespace jax_convbatch
