// SPDX-License-Identifier: Apache-2.0
// fprop and dgrad of depthwise 3x3 filters without strides in bf16 and f16, on
// Hopper: tiles come and go by TMA, which no thread waits to issue.
#pragma once

#include "cuda/sm80/direct/direct.h"

namespace jax_convbatch::direct {

// Nothing where the kernel cannot run, or where its tiles hang far over the
// image. Its bits are those of depthwise.cuh.
std::optional<Plan> PlanDepthwiseCopies(Op op, const ConvGeometry& g, Type type,
                                        int multiprocessors);
cudaError_t RunDepthwiseCopies(Op op, const Call& call, Stage stage,
                               cudaStream_t stream);

}  // namespace jax_convbatch::direct
