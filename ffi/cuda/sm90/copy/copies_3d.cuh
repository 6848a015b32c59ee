// SPDX-License-Identifier: Apache-2.0
// Copies of three axes (tensor_map_3d.h), and of two or three.
#ifndef JAX_CONVBATCH_CUDA_SM90_COPY_COPIES_3D_CUH_
#define JAX_CONVBATCH_CUDA_SM90_COPY_COPIES_3D_CUH_

#include <cuda.h>

#include <cstdint>

#include "cuda/sm90/arch/tensor_copies.cuh"

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

// Where an im2col copy begins; d counts where there are three axes.
struct PixelPlace {
  int w, h, image, d = 0;
};

// From there to the pixels of a tap.
struct TapOffset {
  int w, h, d = 0;
};

// The maps of one launch have the same number of axes, so that all threads
// take the same branch: one kernel serves volumes, images and sequences.
__device__ __forceinline__ void LoadTap(bool in_depth, uint32_t to,
                                        const CUtensorMap& map,
                                        uint32_t barrier, int c,
                                        const PixelPlace& at,
                                        const TapOffset& tap) {
  if (in_depth) {
    Load3dIm2col(to, map, barrier, c, at.w, at.h, at.d, at.image, tap.w, tap.h,
                 tap.d);
  } else {
    LoadIm2col(to, map, barrier, c, at.w, at.h, at.image, tap.w, tap.h);
  }
}

// To blocks of a cluster, see MulticastIm2col.
__device__ __forceinline__ void MulticastTap(
    bool in_depth, uint32_t to, const CUtensorMap& map, uint32_t barrier, int c,
    const PixelPlace& at, const TapOffset& tap, uint16_t blocks) {
  if (in_depth) {
    Multicast3dIm2col(to, map, barrier, c, at.w, at.h, at.d, at.image, tap.w,
                      tap.h, tap.d, blocks);
  } else {
    MulticastIm2col(to, map, barrier, c, at.w, at.h, at.image, tap.w, tap.h,
                    blocks);
  }
}

__device__ __forceinline__ void StorePixels(bool in_depth,
                                            const CUtensorMap& map,
                                            uint32_t from, int c,
                                            const PixelPlace& at) {
  if (in_depth) {
    Store3dIm2col(map, from, c, at.w, at.h, at.d, at.image);
  } else {
    StoreIm2col(map, from, c, at.w, at.h, at.image);
  }
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_COPY_COPIES_3D_CUH_
