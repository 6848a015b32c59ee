// SPDX-License-Identifier: Apache-2.0
// How the outputs of a convolution, or of its dgrad, walk its inputs along one
// axis: whatever the stride, dilation and padding.
#pragma once

#include <cstdint>

#include "conv_geometry.h"

namespace jax_convbatch::direct {

inline constexpr int kMaxClasses = 8;

// Output o reads input i with tap t where o * out_scale + shift + t * dilation
// == i * in_scale. Residue classes of o have taps of their own.
struct AxisEquation {
  int64_t in_size, out_size, taps;
  int64_t out_scale, shift, dilation, in_scale;
};

// The taps of one class: `first`, first + tap_step, ..., `count` of them. The
// class's output 0 reads with the first at `input` from the walk's origin.
struct ClassTaps {
  int count, first, input;
};

// Output j of class c is o = c + j * classes; with its i-th tap it reads input
// origin + taps[c].input + j * in_step + i * offset_step. No offset is
// negative, and the largest one of output 0 of any class is `span`.
struct AxisWalk {
  int in_size, out_size, filter_size;
  int classes, in_step, tap_step, offset_step;
  int origin, span;
  ClassTaps taps[kMaxClasses];

  // Inputs from the first to the last that `count` outputs a class read.
  int extent(int count) const { return (count - 1) * in_step + span + 1; }
  // Outputs of the largest class.
  int class_size() const { return (out_size + classes - 1) / classes; }
};

// False where there are more classes than kMaxClasses or numbers that could
// overflow.
bool MakeWalk(const AxisEquation& equation, AxisWalk* walk);

// y from x, or dx from dy, along the height and the width.
struct Walks {
  AxisWalk h, w;
};
bool FpropWalks(const ConvGeometry& g, Walks* walks);
bool DgradWalks(const ConvGeometry& g, Walks* walks);

}  // namespace jax_convbatch::direct
