// SPDX-License-Identifier: Apache-2.0
// wgmma.cuh's multiplication of 16-bit elements by the pixels of strips as
// columns: 224 and 160 of them.
#pragma once

#include "cuda/sm90/arch/wgmma.cuh"

namespace jax_convbatch::hopper {

#define JCB_WGMMA(type, n, registers, b_, ta_)                        \
  asm volatile(                                                       \
      "{\n.reg .pred always;\nsetp.eq.u32 always, 0, 0;\n"            \
      "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type \
      " {" JCB_TEXT_##registers "}, %" #registers ", %" #b_           \
                                ", always, 1, 1, %" #ta_ ", 0;\n}\n"  \
      : JCB_D_##registers                                             \
      : "l"(a), "l"(b), "n"(kTransposeA))

// d += a b, with b Contiguous::kReduction.
template <typename T, Contiguous kA, int kN>
__device__ __forceinline__ void WgmmaColumnStrip(float (&d)[kN / 2], uint64_t a,
                                                 uint64_t b) {
  constexpr int kTransposeA = kA == Contiguous::kRows;
  constexpr bool kBf16 = std::is_same_v<T, __nv_bfloat16>;
  static_assert(kBf16 || std::is_same_v<T, __half>);
  static_assert(kN == 224 || kN == 160);
  if constexpr (kBf16 && kN == 224) {
    JCB_WGMMA("bf16", 224, 112, 113, 114);
  } else if constexpr (kBf16) {
    JCB_WGMMA("bf16", 160, 80, 81, 82);
  } else if constexpr (kN == 224) {
    JCB_WGMMA("f16", 224, 112, 113, 114);
  } else {
    JCB_WGMMA("f16", 160, 80, 81, 82);
  }
}

#undef JCB_WGMMA

}  // namespace jax_convbatch::hopper
