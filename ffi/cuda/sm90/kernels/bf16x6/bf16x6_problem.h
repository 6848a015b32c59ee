// SPDX-License-Identifier: Apache-2.0
// What the host tells the kernels of f32 by six products.
#pragma once

#include "cuda/sm90/problem/conv_problem.h"

namespace jax_convbatch::hopper {

// ConvProblem with the terms of the filter for its weights, [3 x taps, depth,
// output channels]. As in simt's problem.h, sums are formed in K slices, by one
// block, or by as many, each to `out` + k_slice * k_slice_size.
template <int kSubs>
struct Bf16x6Problem : ConvProblem<kSubs> {
  const float *in, *w;
  float* out;
  int taps;
  int height, width, depth;  // of in
  int out_height, out_width;
  // From an output channel, and from an input channel, to the next one in w.
  int64_t w_channel, w_depth;
  int k_slices;
  bool split;
  int64_t k_slice_size;
};

}  // namespace jax_convbatch::hopper
