// Blocks of the kernel of strip_tf32_wide.cuh.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_FEW_CHANNELS_STRIP_TF32_WIDE_TILING_H_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_FEW_CHANNELS_STRIP_TF32_WIDE_TILING_H_

namespace jax_convbatch::hopper {

inline constexpr int kStripWideStages = 2;

// Columns are longer.
inline constexpr int kStripWideLeast = 64;

// Eights of a column that there are kernels for.
inline constexpr int kStripWideSteps[] = {10, 14, 19, 25, 46};

// Those that columns of such a kernel fill.
constexpr int StripWideFullSteps(int steps) {
  int full = kStripWideLeast / 8;
  for (const int fewer : kStripWideSteps) {
    if (fewer < steps) full = fewer;
  }
  return full;
}

// 64 output channels of the filter, in boxes of 32 elements of a column.
constexpr int StripWideBoxes(int steps) { return (steps + 3) / 4; }
constexpr int StripWideFilterBytes(int steps) {
  return StripWideBoxes(steps) * 64 * 128;
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_FEW_CHANNELS_STRIP_TF32_WIDE_TILING_H_
