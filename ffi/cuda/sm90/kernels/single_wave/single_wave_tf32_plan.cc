// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/kernels/single_wave/single_wave_tf32_plan.h"

#include <algorithm>
#include <iterator>

#include "cuda/sm90/kernels/single_wave/single_wave_plan.h"

namespace jax_convbatch::hopper {

bool IsSingleWaveTf32(const Plan& plan) {
  return (plan.tile_n == 64 || plan.tile_n == 128) &&
         std::find(std::begin(kSingleWaveTf32Pixels),
                   std::end(kSingleWaveTf32Pixels),
                   plan.tile_m) != std::end(kSingleWaveTf32Pixels);
}

bool TapsShareInSingleWave(const SubproblemAxis& w, int channels) {
  SubproblemAxis longer = w;
  longer.count *= 4;
  return channels == 64 && TapsShare(longer);
}

}  // namespace jax_convbatch::hopper
