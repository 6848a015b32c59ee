// SPDX-License-Identifier: Apache-2.0
// Copies of three axes (tensor_map_3d.h).
#ifndef JAX_CONVBATCH_CUDA_SM90_COPY_COPIES_3D_CUH_
#define JAX_CONVBATCH_CUDA_SM90_COPY_COPIES_3D_CUH_

#include <cuda.h>

#include <cstdint>

namespace jax_convbatch::hopper {

// LoadIm2col with a third axis.
__device__ __forceinline__ void Load3dIm2col(uint32_t to,
                                             const CUtensorMap& map,
                                             uint32_t barrier, int c, int w,
                                             int h, int d, int n, int offset_w,
                                             int offset_h, int offset_d) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.im2col"
      ".mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, %7}], [%2], "
      "{%8, %9, %10};" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(c), "r"(w), "r"(h), "r"(d), "r"(n),
      "h"(static_cast<uint16_t>(offset_w)),
      "h"(static_cast<uint16_t>(offset_h)), "h"(static_cast<uint16_t>(offset_d))
      : "memory");
}

// MulticastIm2col with a third axis.
__device__ __forceinline__ void Multicast3dIm2col(
    uint32_t to, const CUtensorMap& map, uint32_t barrier, int c, int w, int h,
    int d, int n, int offset_w, int offset_h, int offset_d, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.im2col"
      ".mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2], {%8, %9, %10}, %11;" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(c), "r"(w), "r"(h), "r"(d), "r"(n),
      "h"(static_cast<uint16_t>(offset_w)),
      "h"(static_cast<uint16_t>(offset_h)),
      "h"(static_cast<uint16_t>(offset_d)), "h"(blocks)
      : "memory");
}

// StoreIm2col with a third axis.
__device__ __forceinline__ void Store3dIm2col(const CUtensorMap& map,
                                              uint32_t from, int c, int w,
                                              int h, int d, int n) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.im2col_no_offs.bulk_group "
      "[%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(&map),
      "r"(from), "r"(c), "r"(w), "r"(h), "r"(d), "r"(n)
      : "memory");
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_COPY_COPIES_3D_CUH_
