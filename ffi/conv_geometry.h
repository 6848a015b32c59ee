// SPDX-License-Identifier: Apache-2.0
// The static description of one convolution. Python's
// jax_convbatch/_shapes/geometry.py has the same struct with the same field
// names.
#pragma once

#include <cstdint>

namespace jax_convbatch {

// One number for each spatial axis, outermost first.
struct Axes {
  int64_t d, h, w;

  bool all(int64_t value) const {
    return d == value && h == value && w == value;
  }
};

// x[N, D, H, W, C], w[T, R, S, C / groups, K], y[N, O, P, Q, K], each stored in
// that order. Problems of fewer spatial dimensions have leading sizes of 1.
//
// Output o reads input d where o * stride.d - pad.d + t * filter_dilation.d ==
// d * input_dilation.d, and likewise p, h and q, w. `pad` is the low padding
// and may be negative; the high padding is implied by O, P and Q.
struct ConvGeometry {
  int64_t N, D, H, W, C, K, T, R, S, O, P, Q, groups;
  Axes stride, pad, input_dilation, filter_dilation;

  // Channels of one group.
  int64_t group_C() const { return C / groups; }
  int64_t group_K() const { return K / groups; }
  // Pixels of one sample of x and of y, taps of the filter.
  int64_t input_pixels() const { return D * H * W; }
  int64_t output_pixels() const { return O * P * Q; }
  int64_t taps() const { return T * R * S; }
  // Rows of one group's filter matrix: the length of a column.
  int64_t column_size() const { return taps() * group_C(); }
  int64_t x_size() const { return N * input_pixels() * C; }
  int64_t w_size() const { return column_size() * K; }
  int64_t y_size() const { return N * output_pixels() * K; }

  // Whether the columns of a sample are the sample itself, so that no buffer
  // is needed: a 1x1 filter that visits every pixel once.
  bool is_pointwise() const {
    return taps() == 1 && stride.all(1) && pad.all(0) &&
           input_dilation.all(1) && O == D && P == H && Q == W;
  }
};

// dgrad of unit strides as the fprop that it is, but for the order of the taps.
inline ConvGeometry DgradAsFprop(const ConvGeometry& g) {
  ConvGeometry f = g;
  f.D = g.O, f.H = g.P, f.W = g.Q, f.C = g.K;
  f.O = g.D, f.P = g.H, f.Q = g.W, f.K = g.C;
  f.pad.d = (g.T - 1) * g.filter_dilation.d - g.pad.d;
  f.pad.h = (g.R - 1) * g.filter_dilation.h - g.pad.h;
  f.pad.w = (g.S - 1) * g.filter_dilation.w - g.pad.w;
  return f;
}

}  // namespace jax_convbatch
