// SPDX-License-Identifier: Apache-2.0
// How a wgrad of split sums is launched: a kernel that multiplies, then one
// that adds what its blocks left.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/sm90/problem/conv.h"

namespace jax_convbatch::hopper {

template <typename Problem>
cudaError_t LaunchOne(void (*kernel)(Problem), int64_t blocks, int threads,
                      int shared_bytes, cudaStream_t stream,
                      const Problem& problem) {
  kernel<<<static_cast<unsigned>(blocks), threads, shared_bytes, stream>>>(
      problem);
  return cudaGetLastError();
}

// multiply() launches a kernel, and add(), but where the sums are whole, the
// kernel `adds`. kPrepare only loads that.
template <typename Adds, typename Multiply, typename Add>
cudaError_t MultiplyThenAdd(Stage stage, bool whole, Adds* adds,
                            Multiply multiply, Add add) {
  if (stage == Stage::kPrepare) {
    cudaFuncAttributes loads;
    return whole ? cudaSuccess : cudaFuncGetAttributes(&loads, adds);
  }
  const cudaError_t error = multiply();
  return error != cudaSuccess || whole ? error : add();
}

}  // namespace jax_convbatch::hopper
