// SPDX-License-Identifier: Apache-2.0
// Depthwise convolutions, of one input and one output channel a group.
#pragma once

#include "cuda/sm80/direct/direct.h"

namespace jax_convbatch::direct {

std::optional<Plan> PlanDepthwise(Op op, const ConvGeometry& g, Type type,
                                  int multiprocessors, bool hopper);
cudaError_t RunDepthwise(Op op, const Call& call, Stage stage,
                         cudaStream_t stream);

}  // namespace jax_convbatch::direct
