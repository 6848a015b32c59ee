// SPDX-License-Identifier: Apache-2.0
// fprop and dgrad of narrow groups in f32, by a plan of PlanGroupTf32.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/sm90/problem/conv.h"

namespace jax_convbatch::hopper {

cudaError_t RunGroupTf32(const ConvCall& call, bool dgrad, Stage stage,
                         cudaStream_t stream);

}  // namespace jax_convbatch::hopper
