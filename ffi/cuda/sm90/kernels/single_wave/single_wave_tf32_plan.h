// SPDX-License-Identifier: Apache-2.0
// Which tiles fprop and dgrad of few outputs have in f32: one a block, all at
// once (single_wave_tf32_kernel.cuh). Host only.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_SINGLE_WAVE_SINGLE_WAVE_TF32_PLAN_H_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_SINGLE_WAVE_SINGLE_WAVE_TF32_PLAN_H_

#include <vector>

#include "cuda/sm90/problem/subproblems.h"

namespace jax_convbatch::hopper {

// Pixels of a tile, by 64 or 128 channels. No other kernel of f32 has tiles of
// so many, so that they tell the kernel.
inline constexpr int kSingleWaveTf32Pixels[] = {24, 40,  56,  72,
                                                96, 104, 112, 208};

bool IsSingleWaveTf32(const Plan& plan);

// Whether three taps of a row share the pixels of a stage in tiles of 64
// channels: as TapsShare, but in shorter rows, too. With 128 channels the
// stages would be two or three.
bool TapsShareInSingleWave(const SubproblemAxis& w, int channels);

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_SINGLE_WAVE_SINGLE_WAVE_TF32_PLAN_H_
