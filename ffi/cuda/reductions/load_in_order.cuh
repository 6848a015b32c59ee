// SPDX-License-Identifier: Apache-2.0
// Loads that stay in the order of the program.
#pragma once

#include <cuda_runtime_api.h>

namespace jax_convbatch {

// *from, where it has 16 bytes loaded before what follows in the program: of
// eight such loads the compiler, left alone, has three under way at a time.
template <typename V>
__device__ __forceinline__ V LoadInOrder(const V* from) {
  if constexpr (sizeof(V) == 16) {
    union {
      uint4 words;
      V vector;
    } loaded;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(loaded.words.x), "=r"(loaded.words.y),
                   "=r"(loaded.words.z), "=r"(loaded.words.w)
                 : "l"(from));
    return loaded.vector;
  } else {
    return *from;
  }
}

}  // namespace jax_convbatch
