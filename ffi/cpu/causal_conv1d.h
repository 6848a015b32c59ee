// SPDX-License-Identifier: Apache-2.0
// FFI handlers of the short causal depthwise convolution along one axis.
#pragma once

#include <algorithm>
#include <cstdint>

#include "causal_conv1d_call.h"
#include "xla/ffi/api/ffi.h"

namespace jax_convbatch {
namespace causal_conv1d {

inline constexpr int64_t kBlockChannels = 512;
inline constexpr int64_t kChunkRows = 128;

// Narrow rows that are handled as one.
inline int64_t RowsTogether(int64_t C) {
  return std::max<int64_t>(1, kBlockChannels / std::max<int64_t>(C, 1));
}

// The sums of dw and dbias are formed chunk by chunk and then added in a fixed
// order. A chunk is some positions of one sample, or all of some samples.
struct Chunks {
  int64_t positions, samples;              // of a chunk
  int64_t along_positions, along_samples;  // how many there are, for each g

  explicit Chunks(const CausalConv1d& call)
      : positions(kChunkRows * RowsTogether(call.C)),
        samples(std::max<int64_t>(1, positions / std::max<int64_t>(call.L, 1))),
        along_positions((call.L + positions - 1) / positions),
        along_samples((call.n + samples - 1) / samples) {}
  int64_t count() const { return along_positions * along_samples; }
};

// Of the gradient: how many its workspace has.
inline int64_t PartialSums(const CausalConv1d& call) {
  return call.G * Chunks(call).count() * (call.taps + 1) * call.C;
}

}  // namespace causal_conv1d

XLA_FFI_DECLARE_HANDLER_SYMBOL(CausalConv1dCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(CausalConv1dGradCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(CausalConv1dUpdateCpu);

}  // namespace jax_convbatch
