// SPDX-License-Identifier: Apache-2.0
// Stages of the last channels where those are at most half of a box. They
// come in boxes of 32 or 16 channels, whose lines and swizzles are as narrow:
// what lies outside of a tensor takes longer to fill in than channels to load.
#pragma once

#include "cuda/sm90/kernels/conv/residue_n_tiles.cuh"

namespace jax_convbatch::hopper {

// Of a kReduction operand in lines of `channels` channels, 16 or 32.
__device__ __forceinline__ uint64_t ResidueKDescriptor(uint32_t address,
                                                       int channels) {
  const uint64_t swizzle = channels == 32 ? 2 : 3;
  return static_cast<uint64_t>(channels * 2 * 8 >> 4) << 32 | swizzle << 62 |
         (address & 0x3FFFF) >> 4;
}

// AddStages of pipeline.cuh, or of residue_n_tiles.cuh, where of `blocks`
// blocks of channels the last has so many. Its filter lies as that of others
// where that is a kRows operand, or stays in shared memory.
template <typename T, Contiguous kB, bool kResident, bool kHalfBoxes, int kRows,
          int kHalfN, int kStages, typename Issued>
__device__ __forceinline__ void AddResidueKStages(
    float (&acc)[kRows][kHalfN], int count, int blocks, int channels,
    uint32_t address_a, uint32_t address_b, int stage_bytes,
    RingBarriers<kStages>& barriers, RingPosition<kStages>& at, Issued issued) {
  constexpr int kN = 2 * kHalfN;
  constexpr bool kFilterRows = kB == Contiguous::kRows;
  constexpr uint64_t kStep = kReductionStep<Contiguous::kReduction>;
  constexpr uint64_t kStepB = kHalfBoxes ? 16 * 64 >> 4 : kReductionStep<kB>;
  auto multiply = [&](uint64_t a, uint64_t row_step, uint64_t b) {
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
      if constexpr (kIsResidueN<kN>) {
        WgmmaResidueN<T, kB, kN>(acc[m], a + m * row_step, b);
      } else {
        Wgmma<T, Contiguous::kReduction, kB, kN>(acc[m], a + m * row_step, b);
      }
    }
  };
  const uint64_t residue_rows = 64 * 2 * channels >> 4;
  const int residue_steps = channels / 16;
  const ReleaseOwn release;
  int previous = -1, number = 0;
  auto wait = [&] {
    BarrierWait(SharedAddress(&barriers.full[at.stage]), at.round);
  };
  auto input = [&] { return address_a + at.stage * stage_bytes; };
  auto weights = [&] {
    return address_b + (kResident ? number * kN * 128 : at.stage * stage_bytes);
  };
  auto filter = [&] {
    return kHalfBoxes ? HalfBoxDescriptor(weights()) : Descriptor(weights());
  };
  auto next = [&] {
    WgmmaCommit();
    WgmmaWait<1>();
    if (previous >= 0) release(SharedAddress(&barriers.empty[previous]));
    previous = at.stage;
    at.Advance();
    ++number;
  };
  for (int whole = count - count / blocks; whole > 0; --whole) {
    wait();
    const uint64_t a = Descriptor(input()), b = filter();
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      multiply(a + k * kStep, kBoxBytes >> 4, b + k * kStepB);
    }
    next();
  }
  for (int taps = count / blocks; taps > 0; --taps) {
    wait();
    const uint64_t a = ResidueKDescriptor(input(), channels);
    const uint64_t b = kFilterRows || kResident
                           ? filter()
                           : ResidueKDescriptor(weights(), channels);
    WgmmaFence();
#pragma unroll 1
    for (int k = 0; k < residue_steps; ++k) {
      multiply(a + k * kStep, residue_rows, b + k * kStepB);
    }
    next();
  }
  issued();
  WgmmaWait<0>();
  if (previous >= 0) release(SharedAddress(&barriers.empty[previous]));
}

}  // namespace jax_convbatch::hopper
