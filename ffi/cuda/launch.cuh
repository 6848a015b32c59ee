// How kernels with one struct of parameters are launched.
#ifndef JAX_CONVBATCH_CUDA_LAUNCH_CUH_
#define JAX_CONVBATCH_CUDA_LAUNCH_CUH_

#include <cuda_runtime_api.h>

#include "cuda/stage.h"

namespace jax_convbatch {

// Launches, or does what may not be done while a graph is captured: raising the
// kernel's limit on shared memory, which also loads it.
template <typename Problem>
cudaError_t LaunchOrPrepare(void (*kernel)(Problem), const Problem& problem,
                            unsigned blocks, int threads, int shared_bytes,
                            Stage stage, cudaStream_t stream) {
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (error != cudaSuccess || stage == Stage::kPrepare) return error;
  kernel<<<blocks, threads, shared_bytes, stream>>>(problem);
  return cudaGetLastError();
}

}  // namespace jax_convbatch

#endif  // JAX_CONVBATCH_CUDA_LAUNCH_CUH_
