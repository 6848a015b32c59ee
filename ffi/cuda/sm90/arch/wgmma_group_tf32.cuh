// SPDX-License-Identifier: Apache-2.0
// wgmma.cuh's multiplication of TF32 by few columns, both operands
// Contiguous::kReduction.
#pragma once

#include <cstdint>

#include "cuda/sm90/arch/wgmma_text.h"

namespace jax_convbatch::hopper {

#define JCB_TEXT_4 "%0, %1, %2, %3"
#define JCB_TEXT_12 JCB_TEXT_8 ", %8, %9, %10, %11"
#define JCB_TEXT_24 JCB_TEXT_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define JCB_TEXT_36 JCB_TEXT_32 ", %32, %33, %34, %35"
#define JCB_D_4 JCB_D4(0)
#define JCB_D_12 JCB_D_8, JCB_D4(8)
#define JCB_D_24 JCB_D_16, JCB_D4(16), JCB_D4(20)
#define JCB_D_36 JCB_D_32, JCB_D4(32)
#define JCB_WGMMA(n, registers, a_, b_)                                \
  asm volatile(                                                        \
      "{\n.reg .pred always;\nsetp.eq.u32 always, 0, 0;\n"             \
      "wgmma.mma_async.sync.aligned.m64n" #n                           \
      "k8.f32.tf32.tf32 {" JCB_TEXT_##registers "}, %" #a_ ", %" #b_   \
                                                ", always, 1, 1;\n}\n" \
      : JCB_D_##registers                                              \
      : "l"(a), "l"(b))

// d += a b, 64 x kN.
template <int kN>
__device__ __forceinline__ void WgmmaGroupTf32(float* d, uint64_t a,
                                               uint64_t b) {
  static_assert(kN == 8 || kN == 16 || kN == 24 || kN == 32 || kN == 48 ||
                kN == 72 || kN == 96);
  if constexpr (kN == 8) {
    JCB_WGMMA(8, 4, 4, 5);
  } else if constexpr (kN == 16) {
    JCB_WGMMA(16, 8, 8, 9);
  } else if constexpr (kN == 24) {
    JCB_WGMMA(24, 12, 12, 13);
  } else if constexpr (kN == 32) {
    JCB_WGMMA(32, 16, 16, 17);
  } else if constexpr (kN == 48) {
    JCB_WGMMA(48, 24, 24, 25);
  } else if constexpr (kN == 72) {
    JCB_WGMMA(72, 36, 36, 37);
  } else {
    JCB_WGMMA(96, 48, 48, 49);
  }
}

#undef JCB_WGMMA
#undef JCB_D_4
#undef JCB_D_12
#undef JCB_D_24
#undef JCB_D_36
#undef JCB_TEXT_4
#undef JCB_TEXT_12
#undef JCB_TEXT_24
#undef JCB_TEXT_36

}  // namespace jax_convbatch::hopper
