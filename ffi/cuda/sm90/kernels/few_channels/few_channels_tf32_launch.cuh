// SPDX-License-Identifier: Apache-2.0
// What the launches of few_channels_tf32.cuh and few_channels_tf32_wgrad.cuh
// share.
#pragma once

#include "cuda/sm90/kernels/few_channels/few_channels_tf32_plan.h"
#include "cuda/sm90/kernels/few_channels/few_channels_tf32_problem.h"

namespace jax_convbatch::hopper {

// All but the pointers.
inline FewChannelsTf32Problem MakeFewChannelsTf32Problem(
    const FewChannelsTf32Shape& shape) {
  FewChannelsTf32Problem p{};
  p.in_h = static_cast<int>(shape.in_h);
  p.in_w = static_cast<int>(shape.in_w);
  p.in_c = static_cast<int>(shape.in_c);
  p.out_h = static_cast<int>(shape.out_h);
  p.out_w = static_cast<int>(shape.out_w);
  p.out_c = static_cast<int>(shape.out_c);
  p.stride_h = static_cast<int>(shape.stride_h);
  p.stride_w = static_cast<int>(shape.stride_w);
  p.pad_h = static_cast<int>(shape.pad_h);
  p.pad_w = static_cast<int>(shape.pad_w);
  p.dilation_h = static_cast<int>(shape.dilation_h);
  p.dilation_w = static_cast<int>(shape.dilation_w);
  p.taps_h = static_cast<int>(shape.taps_h);
  p.taps_w = static_cast<int>(shape.taps_w);
  p.rows = static_cast<int>(shape.rows);
  p.cols = static_cast<int>(shape.cols);
  p.band = static_cast<int>(shape.band);
  p.strip_row = static_cast<int>(shape.strip_row);
  p.divide_strip_row = FastDivmod<uint32_t>(shape.strip_row);
  p.across = FastDivmod<uint32_t>(shape.across());
  p.down = FastDivmod<uint32_t>(shape.down());
  p.tiles = static_cast<int>(shape.tiles());
  return p;
}

}  // namespace jax_convbatch::hopper
