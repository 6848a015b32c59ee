// SPDX-License-Identifier: Apache-2.0
// What the blocks of a cluster do in each other's shared memory.
#pragma once

#include <cstdint>

namespace jax_convbatch::hopper {

// All threads of the cluster that have not ended. kWritten: what they wrote to
// shared memory before is visible to all after.
template <bool kWritten = true>
__device__ __forceinline__ void ClusterBarrier() {
  if constexpr (kWritten) {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  } else {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  }
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// At the barrier that lies there in another block of the cluster. Not a release
// for the cluster, which would wait for all that this thread ever wrote.
__device__ __forceinline__ void BarrierArriveAt(uint32_t barrier, int block) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}\n" ::"r"(barrier),
      "r"(block)
      : "memory");
}

// The two halves of a cluster's barrier, for threads that do something between
// them. What was written before is not waited for.
__device__ __forceinline__ void ClusterArrive() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
__device__ __forceinline__ void ClusterWait() {
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// The same place in the shared memory of another block of the cluster.
__device__ __forceinline__ uint32_t InCluster(uint32_t address, int block) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(there)
      : "r"(address), "r"(block));
  return there;
}

// To a place in the cluster, announced there as 16 bytes of a copy.
__device__ __forceinline__ void SendShared4(uint32_t to, uint32_t barrier,
                                            float4 v) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
      "[%0], {%2, %3, %4, %5}, [%1];" ::"r"(to),
      "r"(barrier), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
      : "memory");
}

// From the same address in another block of the cluster.
__device__ __forceinline__ float4 LoadClusterShared(uint32_t address,
                                                    int block) {
  float4 v;
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [remote];\n"
      "}\n"
      : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
      : "r"(address), "r"(block)
      : "memory");
  return v;
}

}  // namespace jax_convbatch::hopper
