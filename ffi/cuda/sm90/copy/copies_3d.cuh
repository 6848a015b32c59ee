// SPDX-License-Identifier: Apache-2.0
// Copies of three axes (tensor_map_3d.h), and of two or three.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <type_traits>

#include "cuda/sm90/arch/tensor_copies.cuh"
#include "cuda/sm90/problem/group_width.h"

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

// One kernel serves images and volumes. Its producers are there twice,
// body(std::bool_constant<volumes>), as what a third axis takes at each stage
// is a fifth of the shortest launches. Groups have two axes.
template <typename Config, typename Problem, typename Body>
__device__ __forceinline__ void ByAxes(const Problem& problem, Body body) {
  if constexpr (Config::kWidth == kOneGroup) {
    if (__builtin_expect(problem.volumes, false)) {
      return body(std::true_type());
    }
  }
  body(std::false_type());
}

// Where `volumes` is no constant, all threads take the same branch: the maps of
// a launch have the same number of axes.
__device__ __forceinline__ void LoadTap(bool volumes, uint32_t to,
                                        const CUtensorMap& map,
                                        uint32_t barrier, int c,
                                        const PixelPlace& at,
                                        const TapOffset& tap) {
  if (volumes) {
    Load3dIm2col(to, map, barrier, c, at.w, at.h, at.d, at.image, tap.w, tap.h,
                 tap.d);
  } else {
    LoadIm2col(to, map, barrier, c, at.w, at.h, at.image, tap.w, tap.h);
  }
}

// To blocks of a cluster, see MulticastIm2col.
__device__ __forceinline__ void MulticastTap(
    bool volumes, uint32_t to, const CUtensorMap& map, uint32_t barrier, int c,
    const PixelPlace& at, const TapOffset& tap, uint16_t blocks) {
  if (volumes) {
    Multicast3dIm2col(to, map, barrier, c, at.w, at.h, at.d, at.image, tap.w,
                      tap.h, tap.d, blocks);
  } else {
    MulticastIm2col(to, map, barrier, c, at.w, at.h, at.image, tap.w, tap.h,
                    blocks);
  }
}

__device__ __forceinline__ void StorePixels(bool volumes,
                                            const CUtensorMap& map,
                                            uint32_t from, int c,
                                            const PixelPlace& at) {
  if (volumes) {
    Store3dIm2col(map, from, c, at.w, at.h, at.d, at.image);
  } else {
    StoreIm2col(map, from, c, at.w, at.h, at.image);
  }
}

}  // namespace jax_convbatch::hopper
