// SPDX-License-Identifier: Apache-2.0
// Which depthwise convolutions are sequences for the causal kernel, and as
// which call.
#pragma once

#include <cstdint>
#include <optional>

#include "causal_conv1d_call.h"
#include "cuda/sm80/causal_conv1d/tasks.h"
#include "cuda/sm80/direct/direct.h"

namespace jax_convbatch::direct {

// Row t of the result is the sum over taps k, the first one first, of the
// filter's k-th (of dgrad: k-th last) times row t + shift - (taps - 1 - k)
// dilation of x (of dgrad: of dy), which has x_rows of them.
struct DepthwiseSequences {
  CausalConv1d call;  // of the result's rows
  int64_t x_rows, shift;
  int vector;  // channels of a thread
  // Few results of a sequence, or of each of those that a dilation makes: each
  // row is summed by itself (few_rows.cuh), with the same bits.
  bool few_rows;

  causal::Tasks tasks() const {
    return causal::TasksOf(call, vector, causal::kFpropBlocks);
  }
};

// Or nothing; N does not count, up to what 32 bits can count.
std::optional<DepthwiseSequences> SequencesOf(Op op, const ConvGeometry& g,
                                              Type type);

}  // namespace jax_convbatch::direct
