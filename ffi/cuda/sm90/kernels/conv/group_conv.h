// SPDX-License-Identifier: Apache-2.0
// fprop and dgrad of several groups, all in one launch: what Fprop and Dgrad
// call where IsGroups2d.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/sm90/problem/conv.h"

namespace jax_convbatch::hopper {

cudaError_t GroupFprop(const ConvCall& call, Stage stage, cudaStream_t stream);
cudaError_t GroupDgrad(const ConvCall& call, Stage stage, cudaStream_t stream);
cudaError_t GroupFpropTf32(const ConvCall& call, Stage stage,
                           cudaStream_t stream);
cudaError_t GroupDgradTf32(const ConvCall& call, Stage stage,
                           cudaStream_t stream);

}  // namespace jax_convbatch::hopper
