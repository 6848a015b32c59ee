// SPDX-License-Identifier: Apache-2.0
// A filter whose input channels are contiguous, made of one whose output
// channels are: the multiplier takes TF32 from shared memory only so.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_CONV_TRANSPOSE_FILTER_H_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_CONV_TRANSPOSE_FILTER_H_

#include <cuda_runtime_api.h>

#include "conv_geometry.h"
#include "cuda/common/stage.h"

namespace jax_convbatch::hopper {

// to[taps, K, C] = w[taps, C, K], f32 of one group.
cudaError_t TransposeFilter(const ConvGeometry& g, const void* w, void* to,
                            Stage stage, cudaStream_t stream);

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_CONV_TRANSPOSE_FILTER_H_
