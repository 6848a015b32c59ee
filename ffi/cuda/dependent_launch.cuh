// A kernel that is launched while the one before it in the stream still runs,
// where the GPU and the code that was compiled for it can.
#ifndef JAX_CONVBATCH_CUDA_DEPENDENT_LAUNCH_CUH_
#define JAX_CONVBATCH_CUDA_DEPENDENT_LAUNCH_CUH_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <utility>

namespace jax_convbatch {

// In the first kernel: the second may start when all blocks have said so.
__device__ __forceinline__ void LetNextStart() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// In the second, before it reads: the first has ended and its writes are seen.
__device__ __forceinline__ void WaitForFirst() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Whether what runs on the current device was compiled for 9.0 or later.
inline bool CanDepend() {
  constexpr int kCompiledFor[] = {__CUDA_ARCH_LIST__};
  bool compiled = false;
  for (int arch : kCompiledFor) compiled |= arch >= 900;
  int device = 0, major = 0;
  return compiled && cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor,
                                device) == cudaSuccess &&
         major >= 9;
}

// Launches a kernel that calls WaitForFirst(), early where that is possible.
template <typename... Parameters, typename... Arguments>
cudaError_t LaunchSecond(void (*kernel)(Parameters...), int64_t blocks,
                         int threads, cudaStream_t stream,
                         Arguments&&... arguments) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(threads);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = CanDepend() ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel,
                            std::forward<Arguments>(arguments)...);
}

}  // namespace jax_convbatch

#endif  // JAX_CONVBATCH_CUDA_DEPENDENT_LAUNCH_CUH_
