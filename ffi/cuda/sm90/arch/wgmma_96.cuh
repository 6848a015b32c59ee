// SPDX-License-Identifier: Apache-2.0
// wgmma.cuh's multiplication of 16-bit elements by 96 columns, for operands
// Contiguous::kRows, and the descriptor of one in rows of 64 bytes.
#pragma once

#include "cuda/sm90/arch/wgmma.cuh"

namespace jax_convbatch::hopper {

// Of a kRows operand in rows of 64 bytes with a swizzle of as many: boxes of 32
// of the operand's rows begin `box_stride` bytes apart.
__device__ __forceinline__ uint64_t HalfLineDescriptor(uint32_t address,
                                                       int box_stride) {
  return uint64_t{512 >> 4} << 32 | uint64_t{2} << 62 |
         static_cast<uint64_t>(box_stride >> 4) << 16 |
         (address & 0x3FFFF) >> 4;
}

#define JCB_WGMMA(type)                                           \
  asm volatile(                                                   \
      "{\n.reg .pred always;\nsetp.eq.u32 always, 0, 0;\n"        \
      "wgmma.mma_async.sync.aligned.m64n96k16.f32." type "." type \
      " {" JCB_TEXT_48 "}, %48, %49, always, 1, 1, 1, 1;\n}\n"    \
      : JCB_D_48                                                  \
      : "l"(a), "l"(b))

// d += a b.
template <typename T>
__device__ __forceinline__ void Wgmma96(float (&d)[48], uint64_t a,
                                        uint64_t b) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    JCB_WGMMA("bf16");
  } else {
    static_assert(std::is_same_v<T, __half>);
    JCB_WGMMA("f16");
  }
}

#undef JCB_WGMMA

}  // namespace jax_convbatch::hopper
