// SPDX-License-Identifier: Apache-2.0
// Copies of boxes of five coordinates.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace jax_convbatch::hopper {

__device__ __forceinline__ void LoadTile5(uint32_t to, const CUtensorMap& map,
                                          uint32_t barrier, int c0, int c1,
                                          int c2, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile"
      ".mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, %7}], "
      "[%2];" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}

__device__ __forceinline__ void StoreTile5(const CUtensorMap& map,
                                           uint32_t from, int c0, int c1,
                                           int c2, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group "
      "[%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(&map),
      "r"(from), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}

}  // namespace jax_convbatch::hopper
