// SPDX-License-Identifier: Apache-2.0
// What the host tells halo_kernel.cuh besides, where a norm and an activation
// come before the convolution.
#pragma once

#include "cuda/sm90/kernels/halo/halo_problem.h"

namespace jax_convbatch::hopper {

// `activation` of HaloProblem comes before the product. dgrad reads x as the
// residual, and writes the activated x.
struct NormActProblem : HaloProblem {
  CUtensorMap activated;
  const float *scale, *shift;
  int factor_step;  // from one sample's to the next's
  float* partials;
};

}  // namespace jax_convbatch::hopper
