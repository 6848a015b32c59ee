// SPDX-License-Identifier: Apache-2.0
// fprop and dgrad of depthwise convolutions along one axis, by the kernel of
// the short causal convolution.
#pragma once

#include <optional>

#include "cuda/sm80/direct/direct.h"

namespace jax_convbatch::direct {

// Or nothing where the kernel cannot run.
std::optional<Plan> PlanDepthwiseSequences(Op op, const ConvGeometry& g,
                                           Type type);
cudaError_t RunDepthwiseSequences(Op op, const Call& call, Stage stage,
                                  cudaStream_t stream);

}  // namespace jax_convbatch::direct
