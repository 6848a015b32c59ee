// SPDX-License-Identifier: Apache-2.0
// Which inputs and outputs of a convolution meet along an axis.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace jax_convbatch {

// Where the taps of one outer coordinate meet the other side of an axis: the
// coordinate there for each tap, or -1.
class Taps {
 public:
  Taps(const int64_t* first, int64_t step) : first_(first), step_(step) {}
  int64_t operator[](int64_t tap) const { return first_[tap * step_]; }

 private:
  const int64_t* first_;
  int64_t step_;
};

// The meetings of outputs and inputs along one axis, from either side. They
// depend on one number only, outer * outer_step + tap * tap_step, so that a
// table over it does each division once and grows with the axis, not with its
// square.
class Meetings {
 public:
  // For outputs: which inputs they read.
  static Meetings Inputs(int64_t out, int64_t taps, int64_t stride, int64_t pad,
                         int64_t filter_dilation, int64_t input_dilation,
                         int64_t in) {
    return Meetings(out, taps, stride, filter_dilation, -pad, input_dilation,
                    in);
  }
  // For inputs: which outputs read them.
  static Meetings Outputs(int64_t in, int64_t taps, int64_t stride, int64_t pad,
                          int64_t filter_dilation, int64_t input_dilation,
                          int64_t out) {
    return Meetings(in, taps, input_dilation, -filter_dilation, pad, stride,
                    out);
  }

  Taps operator[](int64_t outer) const {
    return Taps(at_.data() + origin_ + outer * outer_step_, tap_step_);
  }

 private:
  // They meet where outer * outer_step + tap * tap_step + offset is other *
  // other_step, with `other` in [0, size).
  Meetings(int64_t outer, int64_t taps, int64_t outer_step, int64_t tap_step,
           int64_t offset, int64_t other_step, int64_t size)
      : outer_step_(outer_step), tap_step_(tap_step) {
    const int64_t reach = (taps - 1) * tap_step;
    origin_ = std::max<int64_t>(0, -reach);
    at_.resize(origin_ + (outer - 1) * outer_step +
               std::max<int64_t>(0, reach) + 1);
    for (int64_t i = 0; i < static_cast<int64_t>(at_.size()); ++i) {
      const int64_t at = i - origin_ + offset;
      const bool meets =
          at >= 0 && at % other_step == 0 && at / other_step < size;
      at_[i] = meets ? at / other_step : -1;
    }
  }

  int64_t outer_step_, tap_step_, origin_;
  std::vector<int64_t> at_;
};

}  // namespace jax_convbatch
