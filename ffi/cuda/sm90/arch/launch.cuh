// SPDX-License-Identifier: Apache-2.0
// What the launches of the Hopper kernels share.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include "cuda/common/dependent_launch.cuh"

namespace jax_convbatch::hopper {

// Lets a kernel have more than 48 KiB. Belongs to the current device; also
// loads the kernel there.
template <typename Kernel>
cudaError_t RaiseSharedMemory(Kernel* kernel, int bytes) {
  return cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

}  // namespace jax_convbatch::hopper
