// SPDX-License-Identifier: Apache-2.0
// Writing large results past the caches.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace jax_convbatch {

// From this size on, zeros and copies in a result bypass the caches: no line of
// memory is read only to be overwritten. Sums do not: where the memory is new
// to the process, the kernel has just cleared it in the caches.
constexpr int64_t kStreamBytes = 8 << 20;

// to[0, bytes) = from[0, bytes), or zeros where `from` is null; not past the
// caches where `to` is not aligned for it.
inline void Stream(const void* from, void* to, int64_t bytes) {
#if defined(__SSE2__)
  constexpr int64_t kUnit = sizeof(__m128i);
  if (reinterpret_cast<uintptr_t>(to) % kUnit == 0 && bytes % kUnit == 0) {
    const auto* source = static_cast<const __m128i*>(from);
    auto* target = static_cast<__m128i*>(to);
    const __m128i zero = _mm_setzero_si128();
    for (int64_t i = 0; i < bytes / kUnit; ++i) {
      _mm_stream_si128(target + i, from ? _mm_loadu_si128(source + i) : zero);
    }
    return;
  }
#endif
  if (from) {
    std::memcpy(to, from, bytes);
  } else {
    std::memset(to, 0, bytes);
  }
}

// Orders what was streamed before what this thread does next.
inline void StreamFence() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace jax_convbatch
