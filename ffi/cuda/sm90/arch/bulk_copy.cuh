// SPDX-License-Identifier: Apache-2.0
// Copies of bytes that lie side by side, by TMA.
#pragma once

#include <cstdint>

namespace jax_convbatch::hopper {

// To shared memory; addresses and `bytes` are multiples of 16.
__device__ __forceinline__ void LoadBytes(uint32_t to, const void* from,
                                          uint32_t barrier, int bytes) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

}  // namespace jax_convbatch::hopper
