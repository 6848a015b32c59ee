// SPDX-License-Identifier: Apache-2.0
// Which convolutions have stages of residue_k_stages.cuh. Host only.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_CONV_RESIDUE_K_PLAN_H_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_CONV_RESIDUE_K_PLAN_H_

#include <cstdint>

namespace jax_convbatch::hopper {

// Channels of their boxes where a tap has `channels` of 16 bits, or 0.
inline int ResidueKChannels(int64_t channels) {
  const int64_t rest = channels % 64;
  return rest == 0 || rest > 32 ? 0 : rest > 16 ? 32 : 16;
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_CONV_RESIDUE_K_PLAN_H_
