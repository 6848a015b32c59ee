// SPDX-License-Identifier: Apache-2.0
// Runs plans of single_wave_plan.h.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/sm90/problem/conv.h"

namespace jax_convbatch::hopper {

// As Fprop and Dgrad of conv.h without an epilogue.
cudaError_t SingleWaveFprop(const ConvCall& call, Stage stage,
                            cudaStream_t stream);
cudaError_t SingleWaveDgrad(const ConvCall& call, Stage stage,
                            cudaStream_t stream);

// Of sums that come in K slices.
cudaError_t SingleWaveSplitK(const ConvCall& call, bool dgrad, Stage stage,
                             cudaStream_t stream);

// As FpropPlain.
cudaError_t SingleWaveFpropPlain(const ConvCall& call, Stage stage,
                                 cudaStream_t stream);

}  // namespace jax_convbatch::hopper
