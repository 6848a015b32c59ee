// SPDX-License-Identifier: Apache-2.0
#ifndef JAX_CONVBATCH_CUDA_COMMON_TAP_AXIS_H_
#define JAX_CONVBATCH_CUDA_COMMON_TAP_AXIS_H_

namespace jax_convbatch::hopper {

// The taps that one sub-problem of the output uses along one axis: tap index
// `tap + i * tap_step` reads at `i * offset_step` from the base pixel.
struct TapAxis {
  int count, tap, tap_step, offset_step;
};

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_COMMON_TAP_AXIS_H_
