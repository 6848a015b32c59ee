// SPDX-License-Identifier: Apache-2.0
// relu's derivative from bits: a bit for each element, the first of eight the
// lowest of a byte.
#pragma once

#include <cstdint>

namespace jax_convbatch {

// Four bytes, each the highest bit of one of `four`, eight times: of byte b
// where its digit in `which` is 8 + b. (__byte_perm does not know this mode.)
__device__ __forceinline__ uint32_t FillBytes(uint32_t four, uint32_t which) {
  uint32_t filled;
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(filled) : "r"(four), "r"(which));
  return filled;
}

// Word i of 16 bytes of elements of kBytes bytes each: all ones where the
// element's bit of `bitmask` is set, else zeros.
template <int kBytes>
__device__ __forceinline__ uint32_t ReluMask(uint32_t bitmask, int i) {
  // A bit of four to the highest of each byte; then it fills an element.
  constexpr int kEach = 4 / kBytes;  // elements of a word
  const int first = i * kEach;
  const uint32_t four = (bitmask >> first / 4 * 4 & 15) * 0x10204080u;
  const int low = 8 + first % 4, high = low + kEach - 1;
  return FillBytes(four, low * 0x0011 + high * 0x1100);
}

}  // namespace jax_convbatch
