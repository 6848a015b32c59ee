// SPDX-License-Identifier: Apache-2.0
// What all kernels of few channels are told of a convolution.
#ifndef JAX_CONVBATCH_CUDA_SM80_SCALARS_PROBLEM_H_
#define JAX_CONVBATCH_CUDA_SM80_SCALARS_PROBLEM_H_

#include <cstdint>

#include "conv_geometry.h"

namespace jax_convbatch::direct {

struct ScalarWindow {
  int depth, height, width, channels;  // of what is read
  int taps_t, taps_r, taps_s;
  int stride_d, stride_h, stride_w, pad_d, pad_h, pad_w;
  int dilation_d, dilation_h, dilation_w;
};

inline ScalarWindow ScalarWindowOf(const ConvGeometry& g) {
  const auto number = [](int64_t n) { return static_cast<int>(n); };
  return {number(g.D),
          number(g.H),
          number(g.W),
          number(g.C),
          number(g.T),
          number(g.R),
          number(g.S),
          number(g.stride.d),
          number(g.stride.h),
          number(g.stride.w),
          number(g.pad.d),
          number(g.pad.h),
          number(g.pad.w),
          number(g.filter_dilation.d),
          number(g.filter_dilation.h),
          number(g.filter_dilation.w)};
}

// Elements from tap to tap, and from channel to channel, of a filter that
// begins with tap 0 at `filter`.
struct ScalarFilter {
  const float* filter;
  int64_t tap_step;
  int in_step, out_step;
};

// `g`: the convolution, dgrad as the fprop that it is, which has the taps from
// the last and the channels the other way round.
inline ScalarFilter ScalarFilterOf(const void* data, const ConvGeometry& g,
                                   bool dgrad) {
  const auto* const filter = static_cast<const float*>(data);
  const int64_t tap = g.C * g.K;
  if (dgrad) {
    return {filter + (g.taps() - 1) * tap, -tap, 1, static_cast<int>(g.C)};
  }
  return {filter, tap, static_cast<int>(g.K), 1};
}

}  // namespace jax_convbatch::direct

#endif  // JAX_CONVBATCH_CUDA_SM80_SCALARS_PROBLEM_H_
