// SPDX-License-Identifier: Apache-2.0
// wgrad of f32 3x3 filters with 16 or 32 channels on either side. Host only.
#pragma once

#include <optional>

#include "cuda/sm90/problem/conv.h"

namespace jax_convbatch::hopper {

// For geometries that are IsPlain2d for Type::kTf32; nothing where the kernel
// cannot run.
std::optional<Plan> PlanSmallWgrad(const ConvGeometry& g, int multiprocessors);

// The kernels of a plan of the path kSmall; see conv.h.
cudaError_t SmallWgrad(const ConvCall& call, Stage stage, cudaStream_t stream);

}  // namespace jax_convbatch::hopper
