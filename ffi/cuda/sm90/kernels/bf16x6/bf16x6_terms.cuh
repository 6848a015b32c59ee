// SPDX-License-Identifier: Apache-2.0
// f32 by six products of bf16: a number is the sum of three of 8 bits each,
// rounded to the nearest. Of the nine products of two numbers' terms the three
// smallest, at most 2^-24 of it together, are left out. The multiplier cuts off
// what it adds, so that its sums are of kBf16x6Depth terms, the smallest
// products first, and are added up by ordinary additions.
#pragma once

#include "cuda/sm90/arch/wgmma_registers.cuh"
#include "cuda/sm90/copy/pipeline.cuh"

namespace jax_convbatch::hopper {

inline constexpr int kBf16x6Depth = 32;  // of a stage
inline constexpr int kBf16x6Steps = kBf16x6Depth / 16;
// Of the right operand in shared memory: kBf16x6Depth rows of 64 numbers.
inline constexpr int kBf16x6BoxBytes = kBf16x6Depth * 128;

// Terms of two neighbours of a sum, as the multiplier takes them.
struct PairTerms {
  uint32_t high, middle, low;
};

__device__ __forceinline__ uint32_t RoundPair(float x, float y) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(y), "f"(x));
  return pair;
}

__device__ __forceinline__ PairTerms TermsOfPair(float x, float y) {
  auto rest = [&](uint32_t pair) {
    x -= __uint_as_float(pair << 16);
    y -= __uint_as_float(pair & 0xffff0000u);
  };
  PairTerms terms;
  terms.high = RoundPair(x, y);
  rest(terms.high);
  terms.middle = RoundPair(x, y);
  rest(terms.middle);
  terms.low = RoundPair(x, y);
  return terms;
}

// A warpgroup's left operand of a stage: `kBlocks` times 64 rows.
template <int kBlocks>
struct Bf16x6Fragments {
  uint32_t at[3][kBf16x6Steps][kBlocks][4];  // by term

  __device__ __forceinline__ void Set(int step, int block, int i, float x,
                                      float y) {
    const PairTerms terms = TermsOfPair(x, y);
    at[0][step][block][i] = terms.high;
    at[1][step][block][i] = terms.middle;
    at[2][step][block][i] = terms.low;
  }
};

// sum += a b, where b's terms begin at `b` and follow each other, each of kN
// columns in boxes of 64. `done` is called when they have been read.
template <int kN, int kBlocks, typename Done>
__device__ __forceinline__ void MultiplyBf16x6(
    float (&sum)[kBlocks][kN / 2], const Bf16x6Fragments<kBlocks>& a,
    uint32_t b, const Done& done) {
  constexpr int kTerm = kN / 64 * kBf16x6BoxBytes;
  constexpr int kOrder[6][2] = {{2, 0}, {0, 2}, {1, 1}, {1, 0}, {0, 1}, {0, 0}};
  float acc[kBlocks][kN / 2];
#pragma unroll
  for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) {
      acc[m][i] = 0.0f;
      asm volatile("" : "+f"(acc[m][i]));  // now, not between multiplications
    }
  }
  WgmmaFence();
#pragma unroll
  for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
    for (int i = 0; i < 6; ++i) {
#pragma unroll
      for (int k = 0; k < kBf16x6Steps; ++k) {
        WgmmaRegisters<__nv_bfloat16, Contiguous::kRows, kN>(
            acc[m], a.at[kOrder[i][0]][k][m],
            StridedDescriptor(b + kOrder[i][1] * kTerm, kBf16x6BoxBytes) +
                k * kReductionStep<Contiguous::kRows>);
      }
    }
  }
  WgmmaCommit();
  WgmmaWait<0>();
  done();
#pragma unroll
  for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) sum[m][i] += acc[m][i];
  }
}

}  // namespace jax_convbatch::hopper
