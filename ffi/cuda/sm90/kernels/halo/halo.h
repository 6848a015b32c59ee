// SPDX-License-Identifier: Apache-2.0
// fprop and dgrad by the tiles of halo_kernel.cuh.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/sm90/problem/conv.h"

namespace jax_convbatch::hopper {

// Of what TakesHalo, fprop with any epilogue or none; see conv.h.
cudaError_t HaloFprop(const ConvCall& call, Stage stage, cudaStream_t stream);
cudaError_t HaloDgrad(const ConvCall& call, Stage stage, cudaStream_t stream);
// The same of f32.
cudaError_t HaloFpropTf32(const ConvCall& call, Stage stage,
                          cudaStream_t stream);
cudaError_t HaloDgradTf32(const ConvCall& call, Stage stage,
                          cudaStream_t stream);

}  // namespace jax_convbatch::hopper
