// SPDX-License-Identifier: Apache-2.0
// Copies by TMA: boxes of tensors, to shared memory and from it.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace jax_convbatch::hopper {

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

// Orders this thread's writes to shared memory before TMA's reads.
__device__ __forceinline__ void FenceAsyncProxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace jax_convbatch::hopper
