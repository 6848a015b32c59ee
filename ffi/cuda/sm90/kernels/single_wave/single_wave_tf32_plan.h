// SPDX-License-Identifier: Apache-2.0
// Which tiles fprop and dgrad of few outputs have in f32: one a block, all at
// once (single_wave_tf32_kernel.cuh). Host only.
#pragma once

#include "cuda/sm90/kernels/single_wave/single_wave_plan.h"

namespace jax_convbatch::hopper {

inline constexpr SingleWaveSize kSingleWaveTf32Tiles[] = {
    {24, 64}, {40, 64},  {56, 64},  {56, 128}, {72, 64},  {72, 128},
    {96, 64}, {104, 64}, {112, 64}, {208, 64}, {208, 128}};

// Whether three taps of a row share the pixels of a stage in tiles of 64
// channels: as TapsShare, but in shorter rows, too. With 128 channels the
// stages would be two or three.
bool TapsShareInSingleWave(const SubproblemAxis& w, int channels);

}  // namespace jax_convbatch::hopper
