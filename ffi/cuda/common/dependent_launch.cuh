// SPDX-License-Identifier: Apache-2.0
// Launches of kernels in clusters, and of kernels that start while the one
// before them in the stream still runs, where the GPU and the code that was
// compiled for it can.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <utility>

namespace jax_convbatch {

// In the first kernel: the next one of the stream may start, if launched so,
// when all blocks have said this or ended.
__device__ __forceinline__ void LaunchDependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// In the next one, before it reads: the first has ended and its writes are
// seen.
__device__ __forceinline__ void WaitForPrimary() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// kEarly: while the kernel before it still runs. It must call WaitForPrimary().
enum class Start { kInOrder, kEarly };

struct Launch {
  int64_t blocks;
  int threads;
  Start start = Start::kInOrder;
  int shared_bytes = 0;
  int cluster = 1;  // blocks
};

// What follows is each file's own (static): files are compiled for different
// GPUs, and one file's answer is not another's.

// Whether what runs on the current device was compiled for 9.0 or later.
static inline bool CanDepend() {
  constexpr int kCompiledFor[] = {__CUDA_ARCH_LIST__};
  bool some = false, all = true;
  for (int arch : kCompiledFor) {
    some |= arch >= 900;
    all &= arch >= 900;
  }
  if (all || !some) return some;
  int device = 0, major = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor,
                                device) == cudaSuccess &&
         major >= 9;
}

template <typename... Parameters, typename... Arguments>
static cudaError_t LaunchKernel(void (*kernel)(Parameters...),
                                const Launch& launch, cudaStream_t stream,
                                Arguments&&... arguments) {
  cudaLaunchAttribute attributes[2]{};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(launch.blocks));
  config.blockDim = dim3(launch.threads);
  config.dynamicSmemBytes = launch.shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  if (launch.start == Start::kEarly && CanDepend()) {
    cudaLaunchAttribute& early = attributes[config.numAttrs++];
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
  }
  if (launch.cluster > 1) {
    cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned>(launch.cluster), 1, 1};
  }
  return cudaLaunchKernelEx(&config, kernel,
                            std::forward<Arguments>(arguments)...);
}

}  // namespace jax_convbatch
