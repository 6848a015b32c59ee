// SPDX-License-Identifier: Apache-2.0
// Warpgroup matrix multiply-accumulate: D[64, kN] += A[64, k] B[k, kN], k = 16
// for 16-bit elements and 8 for TF32, with A and B in shared memory (A may be
// in registers for TF32), D in f32 registers of the 128 threads.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "cuda/sm90/arch/wgmma_text.h"

namespace jax_convbatch::hopper {

// How an operand lies in shared memory, always in rows of 128 bytes with the
// 128-byte swizzle, as TMA writes boxes 64 elements wide.
//   kReduction: a row holds 64 elements of the reduction; rows are rows of the
//               operand (K-major).
//   kRows:      a row holds 64 rows of the operand; rows walk the reduction
//               (MN-major). Each 64 rows of the operand are a box of their own.
enum class Contiguous { kReduction, kRows };

// Bytes of a box of 64 x 64 16-bit elements.
inline constexpr int kBoxBytes = 64 * 128;

// The part of a matrix descriptor that does not depend on the address. Groups
// of 8 rows are 1024 bytes apart; boxes of a kRows operand follow each other.
inline constexpr uint64_t kDescriptorBase = uint64_t{kBoxBytes >> 4} << 16 |
                                            uint64_t{1024 >> 4} << 32 |
                                            uint64_t{1} << 62;  // the swizzle

__device__ __forceinline__ uint64_t Descriptor(uint32_t address) {
  return kDescriptorBase | (address & 0x3FFFF) >> 4;
}

// Of a kRows operand whose boxes begin `box_stride` bytes apart.
__device__ __forceinline__ uint64_t StridedDescriptor(uint32_t address,
                                                      int box_stride) {
  return uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62 |
         static_cast<uint64_t>(box_stride >> 4) << 16 |
         (address & 0x3FFFF) >> 4;
}

// What k steps along the reduction add to a descriptor.
template <Contiguous kLayout>
inline constexpr uint64_t kReductionStep =
    kLayout == Contiguous::kReduction ? 32 >> 4 : 16 * 128 >> 4;

__device__ __forceinline__ void WgmmaFence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void WgmmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int kPending>
__device__ __forceinline__ void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// D has `registers` registers; the operands behind them are a, b and the two
// transpositions, whose numbers follow. `always` says that D is added to.
#define JCB_WGMMA(type, n, registers, a_, b_, ta_, tb_)                       \
  asm volatile(                                                               \
      "{\n.reg .pred always;\nsetp.eq.u32 always, 0, 0;\n"                    \
      "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type         \
      " {" JCB_TEXT_##registers "}, %" #a_ ", %" #b_ ", always, 1, 1, %" #ta_ \
                                ", %" #tb_ ";\n}\n"                           \
      : JCB_D_##registers                                                     \
      : "l"(a), "l"(b), "n"(kTransposeA), "n"(kTransposeB))

// The same for TF32, which has no transpositions.
#define JCB_WGMMA_TF32(n, registers, a_, b_)               \
  asm volatile(                                            \
      "{\n.reg .pred always;\nsetp.eq.u32 always, 0, 0;\n" \
      "wgmma.mma_async.sync.aligned.m64n" #n               \
      "k8.f32.tf32.tf32"                                   \
      " {" JCB_TEXT_##registers "}, %" #a_ ", %" #b_       \
                                ", always, 1, 1;"          \
                                "\n}\n"                    \
      : JCB_D_##registers                                  \
      : "l"(a), "l"(b))
#define JCB_WGMMA_TF32_A(n, registers, a0, a1, a2, a3, b_)                \
  asm volatile(                                                           \
      "{\n.reg .pred always;\nsetp.eq.u32 always, 0, 0;\n"                \
      "wgmma.mma_async.sync.aligned.m64n" #n                              \
      "k8.f32.tf32.tf32"                                                  \
      " {" JCB_TEXT_##registers "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 \
                                "},"                                      \
                                " %" #b_ ", always, 1, 1;\n}\n"           \
      : JCB_D_##registers                                                 \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

// d += a b for TF32, both operands Contiguous::kReduction.
template <int kN>
__device__ __forceinline__ void WgmmaTf32(float (&d)[kN / 2], uint64_t a,
                                          uint64_t b) {
  static_assert(kN == 32 || kN == 64 || kN == 128 || kN == 256);
  if constexpr (kN == 32) {
    JCB_WGMMA_TF32(32, 16, 16, 17);
  } else if constexpr (kN == 64) {
    JCB_WGMMA_TF32(64, 32, 32, 33);
  } else if constexpr (kN == 128) {
    JCB_WGMMA_TF32(128, 64, 64, 65);
  } else {
    JCB_WGMMA_TF32(256, 128, 128, 129);
  }
}

// The same with A in registers. Of a warp's 16 rows, lane l holds rows l / 4
// and l / 4 + 8 of column l % 4, then of column l % 4 + 4.
template <int kN>
__device__ __forceinline__ void WgmmaTf32(float (&d)[kN / 2],
                                          const uint32_t (&a)[4], uint64_t b) {
  static_assert(kN == 32 || kN == 64 || kN == 128 || kN == 256);
  if constexpr (kN == 32) {
    JCB_WGMMA_TF32_A(32, 16, 16, 17, 18, 19, 20);
  } else if constexpr (kN == 64) {
    JCB_WGMMA_TF32_A(64, 32, 32, 33, 34, 35, 36);
  } else if constexpr (kN == 128) {
    JCB_WGMMA_TF32_A(128, 64, 64, 65, 66, 67, 68);
  } else {
    JCB_WGMMA_TF32_A(256, 128, 128, 129, 130, 131, 132);
  }
}

// d += a b.
template <typename T, Contiguous kA, Contiguous kB, int kN>
__device__ __forceinline__ void Wgmma(float (&d)[kN / 2], uint64_t a,
                                      uint64_t b) {
  constexpr int kTransposeA = kA == Contiguous::kRows;
  constexpr int kTransposeB = kB == Contiguous::kRows;
  constexpr bool kTf32 = std::is_same_v<T, float>;
  constexpr bool kBf16 = std::is_same_v<T, __nv_bfloat16>;
  static_assert(kBf16 || std::is_same_v<T, __half> || std::is_same_v<T, float>);
  static_assert(kN == 64 || kN == 128 || kN == 192 || kN == 232 || kN == 256 ||
                kTf32);
  if constexpr (kTf32) {
    static_assert(!kTransposeA && !kTransposeB);
    WgmmaTf32<kN>(d, a, b);
  } else if constexpr (kBf16 && kN == 64) {
    JCB_WGMMA("bf16", 64, 32, 32, 33, 34, 35);
  } else if constexpr (kBf16 && kN == 128) {
    JCB_WGMMA("bf16", 128, 64, 64, 65, 66, 67);
  } else if constexpr (kBf16 && kN == 192) {
    JCB_WGMMA("bf16", 192, 96, 96, 97, 98, 99);
  } else if constexpr (kBf16 && kN == 232) {
    JCB_WGMMA("bf16", 232, 116, 116, 117, 118, 119);
  } else if constexpr (kBf16 && kN == 256) {
    JCB_WGMMA("bf16", 256, 128, 128, 129, 130, 131);
  } else if constexpr (!kBf16 && kN == 64) {
    JCB_WGMMA("f16", 64, 32, 32, 33, 34, 35);
  } else if constexpr (!kBf16 && kN == 128) {
    JCB_WGMMA("f16", 128, 64, 64, 65, 66, 67);
  } else if constexpr (!kBf16 && kN == 192) {
    JCB_WGMMA("f16", 192, 96, 96, 97, 98, 99);
  } else if constexpr (!kBf16 && kN == 232) {
    JCB_WGMMA("f16", 232, 116, 116, 117, 118, 119);
  } else if constexpr (!kBf16 && kN == 256) {
    JCB_WGMMA("f16", 256, 128, 128, 129, 130, 131);
  }
}

#undef JCB_WGMMA
#undef JCB_WGMMA_TF32
#undef JCB_WGMMA_TF32_A

}  // namespace jax_convbatch::hopper
