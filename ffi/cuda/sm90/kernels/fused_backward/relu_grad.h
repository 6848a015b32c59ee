// SPDX-License-Identifier: Apache-2.0
// relu's derivative and the bias gradient where dy is so small that launches
// and latency are what they take: each thread has few rows and loads them all
// at once, and the blocks' sums are added by a kernel of their own, for which
// nothing else has to wait.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_FUSED_BACKWARD_RELU_GRAD_H_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_FUSED_BACKWARD_RELU_GRAD_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/sm90/problem/conv.h"

namespace jax_convbatch::hopper {

// dz[rows, K] = dy where relu's derivative is 1, else 0; db[K] its sums.
// bitmask: `saved` are y's, as Epilogue's; else it is y. bf16 or f16.
struct ReluGradCall {
  Type type;
  int64_t rows, K;
  bool bitmask;
  const void *saved, *dy;
  void *dz, *db;
  float* partials;  // ReluGradPartials floats
};

// Whether there are kernels for it.
bool HasReluGrad(int64_t rows, int64_t K, Type type);

int64_t ReluGradPartials(int64_t rows, int64_t K);

// dz and the partial sums; then db.
cudaError_t ReluGrad(const ReluGradCall& call, Stage stage,
                     cudaStream_t stream);
cudaError_t ReluGradSums(const ReluGradCall& call, Stage stage,
                         cudaStream_t stream);

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_FUSED_BACKWARD_RELU_GRAD_H_
