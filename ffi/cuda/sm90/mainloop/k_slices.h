// SPDX-License-Identifier: Apache-2.0
// Long sums of few outputs an image (SumsInKSlices in subproblems.h) are formed
// in K slices, each from zero, which are added in order.
#ifndef JAX_CONVBATCH_CUDA_SM90_MAINLOOP_K_SLICES_H_
#define JAX_CONVBATCH_CUDA_SM90_MAINLOOP_K_SLICES_H_

namespace jax_convbatch::hopper {

inline constexpr int kSumKSlices = 4;

// What a K slice's first stage is, as StageWalk counts, and how many it has.
struct ConvKSlice {
  int r, s, block, count;
};
struct ConvKSlices {
  ConvKSlice k_slice[kSumKSlices];
};

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_MAINLOOP_K_SLICES_H_
