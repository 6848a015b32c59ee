// SPDX-License-Identifier: Apache-2.0
// Depthwise 5x5 and 7x7 filters without strides in bf16 and f16, on Hopper: by
// the tensor cores, see depthwise_planes.cuh.
#pragma once

#include "cuda/sm80/direct/direct.h"

namespace jax_convbatch::direct {

// Nothing where the kernel cannot run.
std::optional<Plan> PlanDepthwisePlanes(Op op, const ConvGeometry& g, Type type,
                                        int multiprocessors);
cudaError_t RunDepthwisePlanes(Op op, const Call& call, Stage stage,
                               cudaStream_t stream);

}  // namespace jax_convbatch::direct
