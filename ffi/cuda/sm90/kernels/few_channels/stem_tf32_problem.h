// SPDX-License-Identifier: Apache-2.0
// What the host tells the kernel of stem_tf32.cuh.
#pragma once

#include "cuda/sm90/kernels/few_channels/few_channels_problem.h"

namespace jax_convbatch::hopper {

struct StemProblem {
  // In elements of 16 bits, twice as many as there are channels: its pairs are
  // f32. Its own filter and results are not set.
  FewChannelsProblem band;
  const float* w;
  float* y;
  int length;  // of a column
  // Of dgrad the channels of dy, whose taps are taken from the last; or 0.
  int flipped;
  FastDivmod<uint32_t> shares;  // blocks that share a tile's output channels
  // Pixels from a row of a product to the next, 1 or 2, by which the loads of a
  // warp find different banks.
  int apart;
};

}  // namespace jax_convbatch::hopper
