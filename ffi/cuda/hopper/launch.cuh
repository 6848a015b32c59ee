// What the launches of the three operations share.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_LAUNCH_CUH_
#define JAX_CONVBATCH_CUDA_HOPPER_LAUNCH_CUH_

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include "cuda/hopper/conv.h"

namespace jax_convbatch::hopper {

inline CUtensorMapDataType MapType(Type type) {
  return type == Type::kBf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                             : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
}

// Lets a kernel have more than 48 KiB. Belongs to the current device; also
// loads the kernel there.
template <typename Kernel>
cudaError_t RaiseSharedMemory(Kernel* kernel, int bytes) {
  return cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_LAUNCH_CUH_
