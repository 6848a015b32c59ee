// SPDX-License-Identifier: Apache-2.0
// Unrolling a sample into columns, and gathering columns back into a sample.
#pragma once

#include <cstdint>

#include "conv_geometry.h"
#include "half.h"
#include "meetings.h"

namespace jax_convbatch {

// The columns of one sample are a matrix [O P Q, T R S C/groups] for each
// group, one after the other; samples follow each other.
inline int64_t ColumnsPerSample(const ConvGeometry& g) {
  return g.output_pixels() * g.taps() * g.C;
}

// Unrolls any outputs of a sample.
template <typename T>
class Unroller {
 public:
  explicit Unroller(const ConvGeometry& g);

  // columns = those of `count` outputs from the first-th on: for each group a
  // matrix [count, T R S C/groups], `group_stride` elements apart.
  void operator()(const T* sample, int64_t first, int64_t count,
                  Compute<T>* columns, int64_t group_stride) const;

 private:
  // The S taps of one (t, r) for one output, of which `row` is the row of x;
  // null where it lies outside.
  void UnrollTaps(const T* row, Taps w_at, Compute<T>* to,
                  int64_t group_stride) const;

  const ConvGeometry g_;
  const Meetings d_, h_, w_;
};

// columns = the columns of `samples` samples of x, zero where a tap reads
// padding or a hole of a dilated input.
template <typename T>
void Unroll(const ConvGeometry& g, int64_t samples, const T* x,
            Compute<T>* columns);

// dx = for each input pixel the sum of the columns' entries that were read from
// it, taps in order t, r, s: the transpose of Unroll, without atomics because
// each pixel gathers what is its own.
template <typename T>
void Gather(const ConvGeometry& g, int64_t samples, const Compute<T>* columns,
            T* dx);

// dx = 0 in the pixels that no output reads, where the filter has one tap.
template <typename T>
void ZeroUnread(const ConvGeometry& g, int64_t samples, T* dx);

}  // namespace jax_convbatch
