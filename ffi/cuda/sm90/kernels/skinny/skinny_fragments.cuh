// SPDX-License-Identifier: Apache-2.0
// What the kernels of skinny_conv.cuh, skinny_wgrad.cuh and skinny_ring.cuh
// multiply by: mma.sync of 16 rows, 8 columns and 32 bytes of the reduction.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/sm80/direct/mma.cuh"
#include "cuda/sm90/arch/mma_tf32.cuh"
#include "cuda/sm90/arch/round_tf32.cuh"

namespace jax_convbatch::hopper {

// f32 is multiplied as TF32, of operands that are rounded.
template <typename T>
__device__ __forceinline__ void MultiplySkinny(float (&sum)[4], uint32_t a0,
                                               uint32_t a1, uint32_t a2,
                                               uint32_t a3, uint32_t b0,
                                               uint32_t b1) {
  if constexpr (std::is_same_v<T, float>) {
    MultiplyTf32(sum, __uint_as_float(a0), __uint_as_float(a1),
                 __uint_as_float(a2), __uint_as_float(a3), __uint_as_float(b0),
                 __uint_as_float(b1));
  } else {
    direct::Multiply16<T>(sum, a0, a1, a2, a3, b0, b1);
  }
}

// A word of an operand as it is multiplied.
template <typename T>
__device__ __forceinline__ uint32_t AsMultiplied(uint32_t word) {
  if constexpr (std::is_same_v<T, float>) {
    return __float_as_uint(RoundTf32(__uint_as_float(word)));
  } else {
    return word;
  }
}

}  // namespace jax_convbatch::hopper
