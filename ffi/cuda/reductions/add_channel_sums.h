// SPDX-License-Identifier: Apache-2.0
// The sums of channel_sums.cuh, from those of parts of a sample.
#ifndef JAX_CONVBATCH_CUDA_REDUCTIONS_ADD_CHANNEL_SUMS_H_
#define JAX_CONVBATCH_CUDA_REDUCTIONS_ADD_CHANNEL_SUMS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace jax_convbatch {

// partials: [samples, chunks, 2, K]; s1, s2: [samples, K]. In an order that
// follows from `chunks`.
cudaError_t AddChannelSums(cudaStream_t stream, int64_t samples, int64_t chunks,
                           int64_t K, const float* partials, float* s1,
                           float* s2);

}  // namespace jax_convbatch

#endif  // JAX_CONVBATCH_CUDA_REDUCTIONS_ADD_CHANNEL_SUMS_H_
