// SPDX-License-Identifier: Apache-2.0
// How kernels with one struct of parameters are launched.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/common/stage.h"

namespace jax_convbatch {

// Lets a kernel have all the shared memory that a block may have, whatever this
// launch takes: threads may launch it for several geometries at once. Belongs
// to the current device; also loads the kernel there.
template <typename Kernel>
cudaError_t RaiseToMost(Kernel* kernel) {
  int device, most;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                 device);
  if (error != cudaSuccess) return error;
  cudaFuncAttributes own;
  error = cudaFuncGetAttributes(&own, kernel);
  if (error != cudaSuccess) return error;
  return cudaFuncSetAttribute(kernel,
                              cudaFuncAttributeMaxDynamicSharedMemorySize,
                              most - static_cast<int>(own.sharedSizeBytes));
}

// Launches, or does what may not be done while a graph is captured.
template <typename Problem>
cudaError_t LaunchOrPrepare(void (*kernel)(Problem), const Problem& problem,
                            unsigned blocks, int threads, int shared_bytes,
                            Stage stage, cudaStream_t stream) {
  const cudaError_t error = RaiseToMost(kernel);
  if (error != cudaSuccess || stage == Stage::kPrepare) return error;
  kernel<<<blocks, threads, shared_bytes, stream>>>(problem);
  return cudaGetLastError();
}

}  // namespace jax_convbatch
