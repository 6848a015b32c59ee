// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/kernels/single_wave/single_wave_tf32_plan.h"

namespace jax_convbatch::hopper {

bool TapsShareInSingleWave(const SubproblemAxis& w, int channels) {
  SubproblemAxis longer = w;
  longer.count *= 4;
  return channels == 64 && TapsShare(longer);
}

}  // namespace jax_convbatch::hopper
