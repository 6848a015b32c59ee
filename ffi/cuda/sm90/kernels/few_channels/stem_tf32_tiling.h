// SPDX-License-Identifier: Apache-2.0
// Blocks of the kernel of stem_tf32.cuh.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_FEW_CHANNELS_STEM_TF32_TILING_H_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_FEW_CHANNELS_STEM_TF32_TILING_H_

namespace jax_convbatch::hopper {

inline constexpr int kStemStages = 2;

// Columns are longer.
inline constexpr int kStemLeast = 64;

// Eights of a column that there are kernels for.
inline constexpr int kStemSteps[] = {10, 14, 19, 25, 46};

// Those that columns of such a kernel fill.
constexpr int StemFullSteps(int steps) {
  int full = kStemLeast / 8;
  for (const int fewer : kStemSteps) {
    if (fewer < steps) full = fewer;
  }
  return full;
}

// 64 output channels of the filter, in boxes of 32 elements of a column.
constexpr int StemBoxes(int steps) { return (steps + 3) / 4; }
constexpr int StemFilterBytes(int steps) { return StemBoxes(steps) * 64 * 128; }

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_FEW_CHANNELS_STEM_TF32_TILING_H_
