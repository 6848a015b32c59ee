// SPDX-License-Identifier: Apache-2.0
// The stages of tiles whose 64 channels are several groups: each group's output
// channels are multiplied by its own input channels, which lie in the same
// places of the row of 64.
#pragma once

#include "cuda/sm90/copy/pipeline.cuh"

namespace jax_convbatch::hopper {

#define JCB_WGMMA(type, n, registers, a_, b_, t_)                     \
  asm volatile(                                                       \
      "{\n.reg .pred always;\nsetp.eq.u32 always, 0, 0;\n"            \
      "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type \
      " {" JCB_TEXT_##registers "}, %" #a_ ", %" #b_                  \
                                ", always, 1, 1, 0, %" #t_ ";\n}\n"   \
      : JCB_D_##registers                                             \
      : "l"(a), "l"(b), "n"(kB == Contiguous::kRows))

// d += a b for 16 or 32 columns, with a Contiguous::kReduction.
template <typename T, Contiguous kB, int kN>
__device__ __forceinline__ void WgmmaNarrow(float* d, uint64_t a, uint64_t b) {
  constexpr bool kBf16 = std::is_same_v<T, __nv_bfloat16>;
  static_assert(kBf16 || std::is_same_v<T, __half>);
  static_assert(kN == 16 || kN == 32);
  if constexpr (kBf16 && kN == 16) {
    JCB_WGMMA("bf16", 16, 8, 8, 9, 10);
  } else if constexpr (kBf16) {
    JCB_WGMMA("bf16", 32, 16, 16, 17, 18);
  } else if constexpr (kN == 16) {
    JCB_WGMMA("f16", 16, 8, 8, 9, 10);
  } else {
    JCB_WGMMA("f16", 32, 16, 16, 17, 18);
  }
}

#undef JCB_WGMMA

// acc += a b for groups of kWidth channels: a is 64 rows of pixels each by 64
// channels, b the kWidth input channels of a group by 64 output channels
// (fprop; in dgrad the other way round).
template <typename T, Contiguous kB, int kWidth, int kRows>
__device__ __forceinline__ void MultiplyGroups(float (&acc)[kRows][32],
                                               uint64_t a, uint64_t b) {
#pragma unroll
  for (int k = 0; k < kWidth / 16; ++k) {
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
#pragma unroll
      for (int c = 0; c < 64; c += kWidth) {
        WgmmaNarrow<T, kB, kWidth>(
            &acc[m][c / 2],
            a + (c * 2 >> 4) + k * kReductionStep<Contiguous::kReduction> +
                m * (kBoxBytes >> 4),
            b + (c * 2 >> 4) + k * kReductionStep<kB>);
      }
    }
  }
}

// AddStages of pipeline.cuh, but for what is multiplied: multiply(stage) issues
// the products of one.
template <int kStages, typename Issued, typename Multiply>
__device__ __forceinline__ void AddStagesBy(int count,
                                            RingBarriers<kStages>& barriers,
                                            RingPosition<kStages>& at,
                                            Issued issued, Multiply multiply) {
  const ReleaseOwn release;
  int previous = -1;
  for (int i = 0; i < count; ++i) {
    BarrierWait(SharedAddress(&barriers.full[at.stage]), at.round);
    WgmmaFence();
    multiply(at.stage);
    WgmmaCommit();
    WgmmaWait<1>();
    if (previous >= 0) release(SharedAddress(&barriers.empty[previous]));
    previous = at.stage;
    at.Advance();
  }
  issued();
  WgmmaWait<0>();
  if (previous >= 0) release(SharedAddress(&barriers.empty[previous]));
}

// AddStages of them.
template <typename T, Contiguous kB, int kWidth, int kRows, int kStages,
          typename Issued>
__device__ __forceinline__ void AddGroupStages(
    float (&acc)[kRows][32], int count, uint32_t address_a, uint32_t address_b,
    int stage_bytes, RingBarriers<kStages>& barriers, RingPosition<kStages>& at,
    Issued issued) {
  AddStagesBy(count, barriers, at, issued, [&](int stage) {
    MultiplyGroups<T, kB, kWidth>(acc,
                                  Descriptor(address_a + stage * stage_bytes),
                                  Descriptor(address_b + stage * stage_bytes));
  });
}

}  // namespace jax_convbatch::hopper
