// SPDX-License-Identifier: Apache-2.0
// Tiles of 32, 96 and 160 channels, for layers of which 64 and 128 would leave
// much empty. What lies in rows of 64 channels elsewhere, output channels in
// fprop's filter and in finished tiles, lies in boxes of 32 here, in lines of
// 64 bytes with a swizzle of as many.
#pragma once

#include "cuda/sm90/arch/wgmma_96.cuh"
#include "cuda/sm90/epilogue/store_tile.cuh"
#include "cuda/sm90/mainloop/group_stages.cuh"

namespace jax_convbatch::hopper {

template <int kN>
inline constexpr bool kIsResidueN = kN % 64 != 0;

// Channels of a box, of a tile of so many.
template <int kN>
inline constexpr int kBoxChannels = kIsResidueN<kN> ? 32 : 64;

// Where in a tile row `row` of its 64 rows number m keeps 8 columns: `eight` is
// their number.
template <int kHalfN>
__device__ __forceinline__ uint32_t ResidueNTileOffset(int m, int row,
                                                       int eight) {
  const int line = (m * (kHalfN / 16) + eight / 4) * 64 + row;
  return line * 64 + ((eight % 4 ^ line / 2 % 4) << 4);
}

// WriteTile of store_tile.cuh.
template <typename T, int kRows, int kHalfN>
__device__ __forceinline__ void WriteResidueNTile(
    const float (&acc)[kRows][kHalfN], uint32_t buffer, uint64_t* written) {
  const int lane = threadIdx.x % 32;
  const int row = threadIdx.x % kWarpgroup / 32 * 16 + lane % 16;
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
#pragma unroll
    for (int j = 0; j < kHalfN / 4; j += 2) {
      const float* v = &acc[m][4 * j];
      StoreMatrix4(buffer + ResidueNTileOffset<kHalfN>(m, row, j + lane / 16),
                   Pack<T>(v[0], v[1]), Pack<T>(v[2], v[3]),
                   Pack<T>(v[4], v[5]), Pack<T>(v[6], v[7]));
    }
  }
  FenceAsyncProxy();
  __syncwarp();
  if (lane == 0) BarrierArrive(SharedAddress(written));
}

// StoreTile of store_tile.cuh.
template <int kM, int kN>
__device__ __forceinline__ void StoreResidueNTile(const ConvSubproblem& sub,
                                                  uint32_t buffer, bool paced,
                                                  int pixel, int channel,
                                                  int channels) {
  constexpr int kBox = kBoxChannels<kN>;
  for (int m = 0; m < kM && pixel + m < sub.pixels; m += 64) {
    for (int n = 0; n < kN && channel + n < channels; n += kBox) {
      StoreTile2(sub.output, buffer + m * kN * 2 + n * 64 * 2, channel + n,
                 pixel + m);
      if (paced) {
        StoreCommit();
        StoreWaitRead<0>();
      }
    }
  }
  StoreCommit();
}

// A kRows operand in boxes of 32 of its rows by 64 of the reduction, which
// follow each other.
__device__ __forceinline__ uint64_t HalfBoxDescriptor(uint32_t address) {
  return HalfLineDescriptor(address, 64 * 64);
}

#define JCB_WGMMA(type, n, registers, a_, b_, tb_)                    \
  asm volatile(                                                       \
      "{\n.reg .pred always;\nsetp.eq.u32 always, 0, 0;\n"            \
      "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type \
      " {" JCB_TEXT_##registers "}, %" #a_ ", %" #b_                  \
                                ", always, 1, 1, 0, %" #tb_ ";\n}\n"  \
      : JCB_D_##registers                                             \
      : "l"(a), "l"(b), "n"(kTransposeB))

// d += a b, with a Contiguous::kReduction.
template <typename T, Contiguous kB, int kN>
__device__ __forceinline__ void WgmmaResidueN(float (&d)[kN / 2], uint64_t a,
                                              uint64_t b) {
  constexpr int kTransposeB = kB == Contiguous::kRows;
  constexpr bool kBf16 = std::is_same_v<T, __nv_bfloat16>;
  static_assert(kBf16 || std::is_same_v<T, __half>);
  static_assert(kN == 32 || kN == 96 || kN == 160);
  if constexpr (kN == 32) {
    WgmmaNarrow<T, kB, 32>(d, a, b);
  } else if constexpr (kBf16 && kN == 96) {
    JCB_WGMMA("bf16", 96, 48, 48, 49, 50);
  } else if constexpr (kBf16) {
    JCB_WGMMA("bf16", 160, 80, 80, 81, 82);
  } else if constexpr (kN == 96) {
    JCB_WGMMA("f16", 96, 48, 48, 49, 50);
  } else {
    JCB_WGMMA("f16", 160, 80, 80, 81, 82);
  }
}

#undef JCB_WGMMA

// AddStages of them.
template <typename T, Contiguous kB, bool kHalfBoxes, int kRows, int kHalfN,
          int kStages, typename Issued>
__device__ __forceinline__ void AddResidueNStages(
    float (&acc)[kRows][kHalfN], int count, uint32_t address_a,
    uint32_t address_b, int stage_bytes, RingBarriers<kStages>& barriers,
    RingPosition<kStages>& at, Issued issued) {
  constexpr uint64_t kStepB = kHalfBoxes ? 16 * 64 >> 4 : kReductionStep<kB>;
  AddStagesBy(count, barriers, at, issued, [&](int stage) {
    const uint64_t a = Descriptor(address_a + stage * stage_bytes);
    const uint32_t weights = address_b + stage * stage_bytes;
    const uint64_t b =
        kHalfBoxes ? HalfBoxDescriptor(weights) : Descriptor(weights);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int m = 0; m < kRows; ++m) {
        WgmmaResidueN<T, kB, 2 * kHalfN>(
            acc[m],
            a + k * kReductionStep<Contiguous::kReduction> +
                m * (kBoxBytes >> 4),
            b + k * kStepB);
      }
    }
  });
}

}  // namespace jax_convbatch::hopper
