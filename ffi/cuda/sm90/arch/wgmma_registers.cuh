// SPDX-License-Identifier: Apache-2.0
// Warpgroup matrix multiply-accumulate with A in registers: D[64, kN] +=
// A[64, 16] B[16, kN], by 64 columns or, of bf16, 128, B as Contiguous says.
// Thread 4 g + t of a warp has of its 16 rows g (a[0], a[2]) and g + 8 (a[1],
// a[3]), columns 2 t and 2 t + 1 (a[0], a[1]), and 8 further (a[2], a[3]).
#pragma once

#include "cuda/sm90/arch/wgmma.cuh"

namespace jax_convbatch::hopper {

#define JCB_WGMMA(type, n, registers, a0, a1, a2, a3, b_, t_)               \
  asm volatile(                                                             \
      "{\n.reg .pred always;\nsetp.eq.u32 always, 0, 0;\n"                  \
      "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type       \
      " {" JCB_TEXT_##registers "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3   \
                                "}, %" #b_ ", always, 1, 1, %" #t_ ";\n}\n" \
      : JCB_D_##registers                                                   \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),                 \
        "n"(kB == Contiguous::kRows))

template <typename T, Contiguous kB, int kN>
__device__ __forceinline__ void WgmmaRegisters(float (&d)[kN / 2],
                                               const uint32_t (&a)[4],
                                               uint64_t b) {
  constexpr bool kBf16 = std::is_same_v<T, __nv_bfloat16>;
  static_assert(kBf16 || std::is_same_v<T, __half>);
  static_assert(kN == 64 || (kBf16 && kN == 128));
  if constexpr (kN == 128) {
    JCB_WGMMA("bf16", 128, 64, 64, 65, 66, 67, 68, 69);
  } else if constexpr (kBf16) {
    JCB_WGMMA("bf16", 64, 32, 32, 33, 34, 35, 36, 37);
  } else {
    JCB_WGMMA("f16", 64, 32, 32, 33, 34, 35, 36, 37);
  }
}

#undef JCB_WGMMA

}  // namespace jax_convbatch::hopper
