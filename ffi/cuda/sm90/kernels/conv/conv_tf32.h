// SPDX-License-Identifier: Apache-2.0
// What Fprop, Dgrad and Wgrad call for Type::kTf32.
#pragma once

#include "cuda/sm90/problem/conv.h"

namespace jax_convbatch::hopper {

cudaError_t FpropTf32(const ConvCall& call, Stage stage, cudaStream_t stream);
cudaError_t FpropActTf32(const ConvCall& call, Stage stage,
                         cudaStream_t stream);
cudaError_t DgradTf32(const ConvCall& call, Stage stage, cudaStream_t stream);
cudaError_t WgradTf32(const ConvCall& call, Stage stage, cudaStream_t stream);

// What PlanWgrad says where the kernels can run.
Plan PlanWgradTf32(const ConvGeometry& g, int multiprocessors);

}  // namespace jax_convbatch::hopper
