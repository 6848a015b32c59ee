// SPDX-License-Identifier: Apache-2.0
// wgmma.cuh's multiplication of 16-bit elements by other numbers of columns,
// for a B that is Contiguous::kReduction.
#pragma once

#include "cuda/sm90/arch/wgmma.cuh"
#include "cuda/sm90/arch/wgmma_text.h"

namespace jax_convbatch::hopper {

// As in wgmma_text.h.
#define JCB_TEXT_24 JCB_TEXT_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define JCB_TEXT_28 JCB_TEXT_24 ", %24, %25, %26, %27"
#define JCB_TEXT_52 JCB_TEXT_48 ", %48, %49, %50, %51"
#define JCB_TEXT_68 JCB_TEXT_64 ", %64, %65, %66, %67"
#define JCB_D_24 JCB_D_16, JCB_D4(16), JCB_D4(20)
#define JCB_D_28 JCB_D_24, JCB_D4(24)
#define JCB_D_52 JCB_D_48, JCB_D4(48)
#define JCB_D_68 JCB_D_64, JCB_D4(64)

#define JCB_WGMMA(type, n, registers, a_, b_, ta_)                            \
  asm volatile(                                                               \
      "{\n.reg .pred always;\nsetp.eq.u32 always, 0, 0;\n"                    \
      "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type         \
      " {" JCB_TEXT_##registers "}, %" #a_ ", %" #b_ ", always, 1, 1, %" #ta_ \
                                ", 0;\n}\n"                                   \
      : JCB_D_##registers                                                     \
      : "l"(a), "l"(b), "n"(kTransposeA))

#define JCB_COLUMNS(n, registers, a_, b_, ta_)    \
  if constexpr (kN == n && kBf16) {               \
    JCB_WGMMA("bf16", n, registers, a_, b_, ta_); \
  } else if constexpr (kN == n) {                 \
    JCB_WGMMA("f16", n, registers, a_, b_, ta_);  \
  }

// d += a b.
template <typename T, Contiguous kA, int kN>
__device__ __forceinline__ void WgmmaColumns(float (&d)[kN / 2], uint64_t a,
                                             uint64_t b) {
  constexpr int kTransposeA = kA == Contiguous::kRows;
  constexpr bool kBf16 = std::is_same_v<T, __nv_bfloat16>;
  static_assert(kBf16 || std::is_same_v<T, __half>);
  static_assert(kN == 32 || kN == 48 || kN == 56 || kN == 96 || kN == 104 ||
                kN == 136 || kN == 192);
  if constexpr (kN == 192) {
    Wgmma<T, kA, Contiguous::kReduction, kN>(d, a, b);
  }
  JCB_COLUMNS(32, 16, 16, 17, 18);
  JCB_COLUMNS(48, 24, 24, 25, 26);
  JCB_COLUMNS(56, 28, 28, 29, 30);
  JCB_COLUMNS(96, 48, 48, 49, 50);
  JCB_COLUMNS(104, 52, 52, 53, 54);
  JCB_COLUMNS(136, 68, 68, 69, 70);
}

#undef JCB_COLUMNS
#undef JCB_WGMMA
#undef JCB_D_68
#undef JCB_D_52
#undef JCB_D_28
#undef JCB_D_24
#undef JCB_TEXT_68
#undef JCB_TEXT_52
#undef JCB_TEXT_28
#undef JCB_TEXT_24

}  // namespace jax_convbatch::hopper
