// SPDX-License-Identifier: Apache-2.0
// Which convolutions have stages of residue_k_stages.cuh. Host only.
#pragma once

#include <cstdint>

namespace jax_convbatch::hopper {

// Channels of their boxes where a tap has `channels` of 16 bits, or 0.
inline int ResidueKChannels(int64_t channels) {
  const int64_t rest = channels % 64;
  return rest == 0 || rest > 32 ? 0 : rest > 16 ? 32 : 16;
}

}  // namespace jax_convbatch::hopper
