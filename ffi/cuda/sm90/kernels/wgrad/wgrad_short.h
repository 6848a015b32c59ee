// SPDX-License-Identifier: Apache-2.0
// wgrad of 16-bit types where each block has few steps, as at small batches.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "cuda/sm90/problem/conv.h"
#include "cuda/sm90/problem/wgrad_tiling.h"

namespace jax_convbatch::hopper {

// Of a plan that IsShort() in wgrad_short_tiling.h.
cudaError_t WgradShort(const ConvCall& call, Stage stage, cudaStream_t stream);

// The tiles of 576x64 that are left over.
cudaError_t WgradLeft(const ConvCall& call, const HaloRounds& rounds,
                      Stage stage, cudaStream_t stream);

// Such plans, each with the microseconds that it should take on an H200.
struct TimedPlan {
  Plan plan;
  double time;
};
std::vector<TimedPlan> PlansOfWgradShort(const ConvGeometry& g, Type type,
                                         int multiprocessors);

}  // namespace jax_convbatch::hopper
