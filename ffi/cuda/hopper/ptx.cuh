// The Hopper instructions that the convolution kernels use, one small function
// each. Addresses of shared memory are 32-bit, as the instructions take them.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_PTX_CUH_
#define JAX_CONVBATCH_CUDA_HOPPER_PTX_CUH_

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace jax_convbatch::hopper {

__device__ __forceinline__ uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// ---- mbarriers --------------------------------------------------------------

__device__ __forceinline__ void BarrierInit(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier),
               "r"(arrivals));
}

// Makes initialised barriers visible to the copy engine and to the cluster.
__device__ __forceinline__ void FenceBarrierInit() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void BarrierArrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier)
               : "memory");
}

// Arrives, and makes the phase wait for `bytes` of asynchronous copies.
__device__ __forceinline__ void BarrierArriveExpect(uint32_t barrier,
                                                    uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
      "r"(bytes)
      : "memory");
}

__device__ __forceinline__ bool BarrierTryWait(uint32_t barrier,
                                               uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}\n"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

__device__ __forceinline__ void BarrierWait(uint32_t barrier, uint32_t parity) {
  while (!BarrierTryWait(barrier, parity)) {
  }
}

// Waits for `threads` threads of the block: a subset named by `id`.
__device__ __forceinline__ void NamedBarrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Arrives without waiting: the other side of NamedBarrier.
__device__ __forceinline__ void NamedBarrierArrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// True in one lane of a warp, all of whose lanes ask.
__device__ __forceinline__ bool ElectOne() {
  uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}\n"
      : "=r"(elected));
  return elected != 0;
}

// ---- tensor copies ----------------------------------------------------------

// So that the first copy need not wait for the map itself.
__device__ __forceinline__ void PrefetchMap(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

__device__ __forceinline__ void LoadTile2(uint32_t to, const CUtensorMap& map,
                                          uint32_t barrier, int c0, int c1) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile"
      ".mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(c0), "r"(c1)
      : "memory");
}

__device__ __forceinline__ void LoadTile3(uint32_t to, const CUtensorMap& map,
                                          uint32_t barrier, int c0, int c1,
                                          int c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile"
      ".mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2)
      : "memory");
}

__device__ __forceinline__ void LoadTile4(uint32_t to, const CUtensorMap& map,
                                          uint32_t barrier, int c0, int c1,
                                          int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile"
      ".mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(
          to),
      "l"(&map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}

// Channels from c of consecutive pixels: base pixel (n, h, w), walked within
// the bounding box of the map, each displaced by (offset_h, offset_w).
__device__ __forceinline__ void LoadIm2col(uint32_t to, const CUtensorMap& map,
                                           uint32_t barrier, int c, int w,
                                           int h, int n, int offset_w,
                                           int offset_h) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.im2col"
      ".mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2], "
      "{%7, %8};" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(c), "r"(w), "r"(h), "r"(n),
      "h"(static_cast<uint16_t>(offset_w)), "h"(static_cast<uint16_t>(offset_h))
      : "memory");
}

// The same to every block of the cluster whose bit is set in `blocks`: the same
// place in its shared memory, announced by its own barrier.
__device__ __forceinline__ void MulticastTile2(uint32_t to,
                                               const CUtensorMap& map,
                                               uint32_t barrier, int c0, int c1,
                                               uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile"
      ".mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(c0), "r"(c1), "h"(blocks)
      : "memory");
}

__device__ __forceinline__ void MulticastIm2col(uint32_t to,
                                                const CUtensorMap& map,
                                                uint32_t barrier, int c, int w,
                                                int h, int n, int offset_w,
                                                int offset_h, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.im2col"
      ".mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8}, %9;" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(c), "r"(w), "r"(h), "r"(n),
      "h"(static_cast<uint16_t>(offset_w)),
      "h"(static_cast<uint16_t>(offset_h)), "h"(blocks)
      : "memory");
}

__device__ __forceinline__ void StoreTile2(const CUtensorMap& map,
                                           uint32_t from, int c0, int c1) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group "
      "[%0, {%2, %3}], [%1];" ::"l"(&map),
      "r"(from), "r"(c0), "r"(c1)
      : "memory");
}

__device__ __forceinline__ void StoreTile3(const CUtensorMap& map,
                                           uint32_t from, int c0, int c1,
                                           int c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group "
      "[%0, {%2, %3, %4}], [%1];" ::"l"(&map),
      "r"(from), "r"(c0), "r"(c1), "r"(c2)
      : "memory");
}

__device__ __forceinline__ void StoreTile4(const CUtensorMap& map,
                                           uint32_t from, int c0, int c1,
                                           int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group "
      "[%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
      "r"(from), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}

__device__ __forceinline__ void StoreIm2col(const CUtensorMap& map,
                                            uint32_t from, int c, int w, int h,
                                            int n) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.im2col_no_offs.bulk_group "
      "[%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
      "r"(from), "r"(c), "r"(w), "r"(h), "r"(n)
      : "memory");
}

__device__ __forceinline__ void StoreCommit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until at most kPending of this thread's stores still read shared
// memory.
template <int kPending>
__device__ __forceinline__ void StoreWaitRead() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Orders this thread's writes to shared memory before the copy engine's reads.
__device__ __forceinline__ void FenceAsyncProxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- clusters ---------------------------------------------------------------

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

// ---- registers and shared memory --------------------------------------------

template <int kRegisters>
__device__ __forceinline__ void GiveRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Four 8x8 matrices of 16-bit elements; lane l gives the address of row l % 8
// of matrix l / 8.
__device__ __forceinline__ void StoreMatrix4(uint32_t address, uint32_t a,
                                             uint32_t b, uint32_t c,
                                             uint32_t d) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
          address),
      "r"(a), "r"(b), "r"(c), "r"(d)
      : "memory");
}

// The reverse.
__device__ __forceinline__ void LoadMatrix4(uint32_t address,
                                            uint32_t (&v)[4]) {
  asm volatile(
      "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
      : "r"(address)
      : "memory");
}

__device__ __forceinline__ float4 LoadShared4(uint32_t address) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

__device__ __forceinline__ float2 LoadShared2(uint32_t address) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
               : "=f"(v.x), "=f"(v.y)
               : "r"(address)
               : "memory");
  return v;
}

__device__ __forceinline__ void StoreShared4(uint32_t address, float4 v) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
               : "memory");
}

__device__ __forceinline__ void StoreShared2(uint32_t address, float2 v) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(v.x),
               "f"(v.y)
               : "memory");
}

__device__ __forceinline__ void StoreShared1(uint32_t address, float v) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(v) : "memory");
}

// The same, each matrix transposed: the address is that of a column.
__device__ __forceinline__ void StoreMatrix4Transposed(uint32_t address,
                                                       uint32_t a, uint32_t b,
                                                       uint32_t c, uint32_t d) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], "
      "{%1, %2, %3, %4};" ::"r"(address),
      "r"(a), "r"(b), "r"(c), "r"(d)
      : "memory");
}

// An 8x8 matrix of 16-bit elements, two to a lane (row lane / 4, columns from
// lane % 4 * 2), transposed. By whole warps.
__device__ __forceinline__ uint32_t TransposeMatrix(uint32_t v) {
  uint32_t transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;"
               : "=r"(transposed)
               : "r"(v));
  return transposed;
}

// Two f32 rounded to T, the first in the low half.
template <typename T>
__device__ __forceinline__ uint32_t Pack(float low, float high);
template <>
__device__ __forceinline__ uint32_t Pack<__nv_bfloat16>(float low, float high) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(v);
}
template <>
__device__ __forceinline__ uint32_t Pack<__half>(float low, float high) {
  const __half2 v = __floats2half2_rn(low, high);
  return reinterpret_cast<const uint32_t&>(v);
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_PTX_CUH_
