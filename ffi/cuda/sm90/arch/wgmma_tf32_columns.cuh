// SPDX-License-Identifier: Apache-2.0
// wgmma.cuh's multiplication of TF32 by other numbers of columns.
#pragma once

#include "cuda/sm90/arch/wgmma.cuh"
#include "cuda/sm90/arch/wgmma_text.h"

namespace jax_convbatch::hopper {

// As in wgmma_text.h.
#define JCB_TEXT_12 JCB_TEXT_8 ", %8, %9, %10, %11"
#define JCB_TEXT_20 JCB_TEXT_16 ", %16, %17, %18, %19"
#define JCB_TEXT_24 JCB_TEXT_20 ", %20, %21, %22, %23"
#define JCB_TEXT_28 JCB_TEXT_24 ", %24, %25, %26, %27"
#define JCB_TEXT_36 JCB_TEXT_32 ", %32, %33, %34, %35"
#define JCB_TEXT_40 JCB_TEXT_36 ", %36, %37, %38, %39"
#define JCB_TEXT_52 JCB_TEXT_48 ", %48, %49, %50, %51"
#define JCB_TEXT_56 JCB_TEXT_52 ", %52, %53, %54, %55"
#define JCB_TEXT_72 JCB_TEXT_64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define JCB_D_72 JCB_D_64, JCB_D4(64), JCB_D4(68)
#define JCB_TEXT_104 JCB_TEXT_96 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define JCB_D_104 JCB_D_96, JCB_D4(96), JCB_D4(100)
#define JCB_D_12 JCB_D_8, JCB_D4(8)
#define JCB_D_20 JCB_D_16, JCB_D4(16)
#define JCB_D_24 JCB_D_20, JCB_D4(20)
#define JCB_D_28 JCB_D_24, JCB_D4(24)
#define JCB_D_36 JCB_D_32, JCB_D4(32)
#define JCB_D_40 JCB_D_36, JCB_D4(36)
#define JCB_D_52 JCB_D_48, JCB_D4(48)
#define JCB_D_56 JCB_D_52, JCB_D4(52)

#define JCB_OPEN "{\n.reg .pred always;\nsetp.eq.u32 always, 0, 0;\n"
#define JCB_WGMMA_TF32(n, registers, a_, b_)                        \
  if constexpr (kN == n) {                                          \
    asm volatile(JCB_OPEN "wgmma.mma_async.sync.aligned.m64n" #n    \
                          "k8.f32.tf32.tf32 {" JCB_TEXT_##registers \
                 "}, %" #a_ ", %" #b_ ", always, 1, 1;\n}\n"        \
                 : JCB_D_##registers                                \
                 : "l"(a), "l"(b));                                 \
  }
#define JCB_WGMMA_TF32_A(n, registers, a0, a1, a2, a3, b_)              \
  if constexpr (kN == n) {                                              \
    asm volatile(JCB_OPEN "wgmma.mma_async.sync.aligned.m64n" #n        \
                          "k8.f32.tf32.tf32 {" JCB_TEXT_##registers     \
                 "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b_   \
                 ", always, 1, 1;\n}\n"                                 \
                 : JCB_D_##registers                                    \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)); \
  }

template <int kN>
inline constexpr bool kIsPlainTf32 =
    kN == 32 || kN == 64 || kN == 128 || kN == 256;

// d += a b, both operands Contiguous::kReduction.
template <int kN>
__device__ __forceinline__ void WgmmaTf32Columns(float (&d)[kN / 2], uint64_t a,
                                                 uint64_t b) {
  static_assert(kIsPlainTf32<kN> || kN == 24 || kN == 40 || kN == 56 ||
                kN == 72 || kN == 96 || kN == 104 || kN == 112 || kN == 160 ||
                kN == 192 || kN == 208 || kN == 224);
  if constexpr (kIsPlainTf32<kN>) WgmmaTf32<kN>(d, a, b);
  JCB_WGMMA_TF32(24, 12, 12, 13);
  JCB_WGMMA_TF32(40, 20, 20, 21);
  JCB_WGMMA_TF32(56, 28, 28, 29);
  JCB_WGMMA_TF32(72, 36, 36, 37);
  JCB_WGMMA_TF32(96, 48, 48, 49);
  JCB_WGMMA_TF32(104, 52, 52, 53);
  JCB_WGMMA_TF32(112, 56, 56, 57);
  JCB_WGMMA_TF32(160, 80, 80, 81);
  JCB_WGMMA_TF32(192, 96, 96, 97);
  JCB_WGMMA_TF32(208, 104, 104, 105);
  JCB_WGMMA_TF32(224, 112, 112, 113);
}

// The same with A in registers.
template <int kN>
__device__ __forceinline__ void WgmmaTf32Columns(float (&d)[kN / 2],
                                                 const uint32_t (&a)[4],
                                                 uint64_t b) {
  static_assert(kIsPlainTf32<kN> || kN == 24 || kN == 40 || kN == 56 ||
                kN == 72 || kN == 96 || kN == 104 || kN == 112 || kN == 192 ||
                kN == 208);
  if constexpr (kIsPlainTf32<kN>) WgmmaTf32<kN>(d, a, b);
  JCB_WGMMA_TF32_A(24, 12, 12, 13, 14, 15, 16);
  JCB_WGMMA_TF32_A(40, 20, 20, 21, 22, 23, 24);
  JCB_WGMMA_TF32_A(56, 28, 28, 29, 30, 31, 32);
  JCB_WGMMA_TF32_A(72, 36, 36, 37, 38, 39, 40);
  JCB_WGMMA_TF32_A(96, 48, 48, 49, 50, 51, 52);
  JCB_WGMMA_TF32_A(104, 52, 52, 53, 54, 55, 56);
  JCB_WGMMA_TF32_A(112, 56, 56, 57, 58, 59, 60);
  JCB_WGMMA_TF32_A(192, 96, 96, 97, 98, 99, 100);
  JCB_WGMMA_TF32_A(208, 104, 104, 105, 106, 107, 108);
}

#undef JCB_WGMMA_TF32
#undef JCB_WGMMA_TF32_A
#undef JCB_OPEN
#undef JCB_D_104
#undef JCB_D_72
#undef JCB_D_56
#undef JCB_D_52
#undef JCB_D_40
#undef JCB_D_36
#undef JCB_D_28
#undef JCB_D_24
#undef JCB_D_20
#undef JCB_D_12
#undef JCB_TEXT_104
#undef JCB_TEXT_72
#undef JCB_TEXT_56
#undef JCB_TEXT_52
#undef JCB_TEXT_40
#undef JCB_TEXT_36
#undef JCB_TEXT_28
#undef JCB_TEXT_24
#undef JCB_TEXT_20
#undef JCB_TEXT_12

}  // namespace jax_convbatch::hopper
