// SPDX-License-Identifier: Apache-2.0
// Runs plans of single_wave_tf32_plan.h.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/sm90/problem/conv.h"

namespace jax_convbatch::hopper {

// As Fprop, FpropAct and Dgrad of conv.h, of one group; an epilogue is plain
// and asks for no bitmask.
cudaError_t SingleWaveFpropTf32(const ConvCall& call, Stage stage,
                                cudaStream_t stream);
cudaError_t SingleWaveFpropPlainTf32(const ConvCall& call, Stage stage,
                                     cudaStream_t stream);
cudaError_t SingleWaveDgradTf32(const ConvCall& call, Stage stage,
                                cudaStream_t stream);

}  // namespace jax_convbatch::hopper
