// SPDX-License-Identifier: Apache-2.0
// A filter whose input channels are contiguous, made of one whose output
// channels are: the multiplier takes TF32 from shared memory only so.
#pragma once

#include <cuda_runtime_api.h>

#include "conv_geometry.h"
#include "cuda/common/stage.h"

namespace jax_convbatch::hopper {

// to[taps, K, C] = w[taps, C, K], f32 of one group.
cudaError_t TransposeFilter(const ConvGeometry& g, const void* w, void* to,
                            Stage stage, cudaStream_t stream);

}  // namespace jax_convbatch::hopper
