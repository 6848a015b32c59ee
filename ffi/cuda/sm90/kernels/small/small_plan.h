// SPDX-License-Identifier: Apache-2.0
// f32 convolutions of 16 or 32 channels to as many. Host only.
#pragma once

#include <optional>

#include "cuda/sm90/problem/conv.h"

namespace jax_convbatch::hopper {

// For geometries that are IsPlain2d for Type::kTf32; nothing where the kernels
// cannot run.
std::optional<Plan> PlanSmallFprop(const ConvGeometry& g, int multiprocessors);
std::optional<Plan> PlanSmallDgrad(const ConvGeometry& g, int multiprocessors);

// The kernels of a plan of the path kSmall; see conv.h.
cudaError_t SmallFprop(const ConvCall& call, Stage stage, cudaStream_t stream);
cudaError_t SmallDgrad(const ConvCall& call, Stage stage, cudaStream_t stream);

}  // namespace jax_convbatch::hopper
