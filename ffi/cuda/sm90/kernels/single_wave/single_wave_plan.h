// SPDX-License-Identifier: Apache-2.0
// Which tiles fprop and dgrad of few outputs have: one a block, all at once
// (single_wave_kernel.cuh). Host only.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_SINGLE_WAVE_SINGLE_WAVE_PLAN_H_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_SINGLE_WAVE_SINGLE_WAVE_PLAN_H_

#include <vector>

#include "cuda/sm90/problem/subproblems.h"

namespace jax_convbatch::hopper {

// Pixels of a tile, by 64 or 128 channels. No other kernel of 16-bit types has
// tiles of so many, so that they tell the kernel.
inline constexpr int kSingleWavePixels[] = {32, 48, 56, 96, 104, 192};
inline constexpr int kMaxSingleWaveSubproblems = 4;  // of a stride
// Where sums come in K slices, of which the blocks of a cluster form one each
// (single_wave_split_k_kernel.cuh): of images of 7x7 pixels.
inline constexpr int kSplitKPixels[] = {56, 104};

bool IsSingleWave(Type type, const Plan& plan);

// Whether the kernel can run the sub-problems: of 16-bit types and one group;
// of a stride's sub-problems the first alone has taps.
bool TakesSingleWave(Type type, const Activations& in, const Activations& out,
                     const std::vector<SubproblemAxes>& subs);

// Where sums come in K slices, each tile a cluster's if all of them run at
// once: a plan of single_wave_split_k_kernel.cuh where it is faster than
// `plan`.
Plan OrCluster(const Plan& plan, const Activations& in, const Activations& out,
               const std::vector<SubproblemAxes>& subs, int multiprocessors);

// What has an epilogue that is not plain in place of a plan of the kernel, or
// of a tile of an odd width: a plan of conv_kernel.cuh or row_band_kernel.cuh,
// with the same bits.
Plan WithEpilogue(const ConvGeometry& g, Type type, const Plan& plan);

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_SINGLE_WAVE_SINGLE_WAVE_PLAN_H_
