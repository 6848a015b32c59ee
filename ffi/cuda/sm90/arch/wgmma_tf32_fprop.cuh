// SPDX-License-Identifier: Apache-2.0
// wgmma_tf32_columns.cuh's multiplication of a left operand in registers by
// numbers of columns that tiles of fprop alone have.
#pragma once

#include "cuda/sm90/arch/wgmma_text.h"
#include "cuda/sm90/arch/wgmma_tf32_columns.cuh"

namespace jax_convbatch::hopper {

#define JCB_WGMMA_TF32_A(n, registers, a0, a1, a2, a3, b_)     \
  template <>                                                  \
  __device__ __forceinline__ void WgmmaTf32Columns<n>(         \
      float (&d)[n / 2], const uint32_t (&a)[4], uint64_t b) { \
    asm volatile(                                              \
        "{\n.reg .pred always;\nsetp.eq.u32 always, 0, 0;\n"   \
        "wgmma.mma_async.sync.aligned.m64n" #n                 \
        "k8.f32.tf32.tf32 {" JCB_TEXT_##registers              \
        "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b_   \
        ", always, 1, 1;\n}\n"                                 \
        : JCB_D_##registers                                    \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)); \
  }

JCB_WGMMA_TF32_A(160, 80, 80, 81, 82, 83, 84)
JCB_WGMMA_TF32_A(224, 112, 112, 113, 114, 115, 116)

#undef JCB_WGMMA_TF32_A

}  // namespace jax_convbatch::hopper
