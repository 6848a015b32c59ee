// SPDX-License-Identifier: Apache-2.0
// The multiplying side of the kernel of deformable convolutions.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_DEFORM_DEFORM_MULTIPLY_CUH_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_DEFORM_DEFORM_MULTIPLY_CUH_

#include "cuda/sm90/kernels/deform/deform_sampling.cuh"
#include "cuda/sm90/mainloop/tf32_fragments.cuh"

namespace jax_convbatch::hopper {

// Waits for a stage and orders the samples in it before the multiplier's reads.
// The fence waits for all memory operations of its thread: a thread that
// samples has loads on the way.
template <int kStages>
__device__ __forceinline__ void WaitForStage(RingBarriers<kStages>& barriers,
                                             const RingPosition<kStages>& at) {
  BarrierWait(SharedAddress(&barriers.full[at.stage]), at.round);
  FenceAsyncProxy();
}

// MultiplyStages of sampled stages.
template <typename T, Contiguous kA, Contiguous kB, int kRows, int kHalfN,
          int kStages>
__device__ __forceinline__ void MultiplySamples(float (&acc)[kRows][kHalfN],
                                                int count, uint32_t address_a,
                                                uint32_t address_b,
                                                int stage_bytes,
                                                RingBarriers<kStages>& barriers,
                                                RingPosition<kStages>& at) {
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
#pragma unroll
    for (int i = 0; i < kHalfN; ++i) acc[m][i] = 0.0f;
  }
  const bool signals = threadIdx.x % 32 == 0;
  int previous = -1;
  for (int i = 0; i < count; ++i) {
    WaitForStage(barriers, at);
    const uint64_t a = Descriptor(address_a + at.stage * stage_bytes);
    const uint64_t b = Descriptor(address_b + at.stage * stage_bytes);
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int m = 0; m < kRows; ++m) {
        Wgmma<T, kA, kB, 2 * kHalfN>(
            acc[m], a + k * kReductionStep<kA> + m * (kBoxBytes >> 4),
            b + k * kReductionStep<kB>);
      }
    }
    WgmmaCommit();
    WgmmaWait<1>();
    if (previous >= 0 && signals) {
      BarrierArrive(SharedAddress(&barriers.empty[previous]));
    }
    previous = at.stage;
    at.Advance();
  }
  WgmmaWait<0>();
  if (previous >= 0 && signals) {
    BarrierArrive(SharedAddress(&barriers.empty[previous]));
  }
}

// MultiplyFragments with the registers of 8 channels at a time.
template <int kBlocks, int kHalfN, int kStages>
__device__ __forceinline__ void MultiplyEights(
    float (&acc)[kBlocks][kHalfN], int count, uint32_t filter, uint32_t pixels,
    int stage_bytes, const FragmentLoader<kBlocks>& loader,
    RingBarriers<kStages>& barriers, RingPosition<kStages>& at) {
#pragma unroll
  for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
    for (int i = 0; i < kHalfN; ++i) acc[m][i] = 0.0f;
  }
  if (count == 0) return;
  const bool signals = threadIdx.x % 32 == 0;
  int previous = -1;
  uint32_t a[2][kBlocks][4];
  WaitForStage(barriers, at);
  loader.Load(filter + at.stage * stage_bytes, 0, a[0]);
  for (int i = 0; i < count; ++i) {
    const int stage = at.stage;
    const uint64_t b = Descriptor(pixels + stage * stage_bytes);
    at.Advance();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      WgmmaFence();
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
        WgmmaTf32<2 * kHalfN>(acc[m], a[k % 2][m],
                              b + k * kReductionStep<Contiguous::kReduction>);
      }
      WgmmaCommit();
      WgmmaWait<1>();
      if (k == 0 && previous >= 0 && signals) {
        BarrierArrive(SharedAddress(&barriers.empty[previous]));
      }
      if (k < 3) {
        loader.Load(filter + stage * stage_bytes, k + 1, a[(k + 1) % 2]);
      } else if (i + 1 < count) {
        WaitForStage(barriers, at);
        loader.Load(filter + at.stage * stage_bytes, 0, a[0]);
      }
    }
    previous = stage;
  }
  WgmmaWait<0>();
  if (signals) BarrierArrive(SharedAddress(&barriers.empty[previous]));
}

// Forms a warpgroup's sums and writes them to the ring, once both have read it.
template <typename Config>
__device__ __forceinline__ void MultiplyTile(
    int stages, int group, uint32_t ring, DeformShared<Config>& shared,
    RingPosition<Config::kStages>& at) {
  const int warp = threadIdx.x % kWarpgroup / 32;
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  constexpr int kRow = Config::kSumRow * 4;
  const uint32_t filter = ring + Config::kColumnBytes;
  if constexpr (Config::kTf32) {
    constexpr int kBlocks = Config::kBlocks, kPixels = Config::kGroupPixels;
    const int channel = kPixels == Config::kM ? group * kBlocks * 64 : 0;
    const int pixel = kPixels == Config::kM ? 0 : group * kPixels;
    const FragmentLoader<kBlocks> loader(t, 4);
    float acc[kBlocks][kPixels / 2];
    MultiplyEights(acc, stages, filter + channel * 128, ring + pixel * 128,
                   Config::kStageBytes, loader, shared.ring, at);
    NamedBarrier(kMultiplied, kConsumers * kWarpgroup);
    const FragmentLane<kBlocks> rows(threadIdx.x);
    const uint32_t to = ring + (pixel + 2 * t) * kRow + channel * 4 +
                        rows.box * 128 + rows.chunk * 16 + rows.half * 8;
#pragma unroll
    for (int i = 0; i < kPixels / 2; ++i) {
      if (i & 2) continue;  // 8 pixels have 4 registers, two rows of two
      const uint32_t line = to + (i / 4 * 8 + i % 2) * kRow;
      if constexpr (kBlocks == 2) {
        StoreShared4(line, make_float4(acc[0][i], acc[0][i + 2], acc[1][i],
                                       acc[1][i + 2]));
      } else {
        StoreShared2(line, make_float2(acc[0][i], acc[0][i + 2]));
      }
    }
  } else if constexpr (Config::kSwapped) {
    float acc[2][Config::kM / 2];
    MultiplySamples<typename Config::T, Contiguous::kRows,
                    Contiguous::kReduction>(
        acc, stages, filter + group * 2 * kBoxBytes, ring, Config::kStageBytes,
        shared.ring, at);
    NamedBarrier(kMultiplied, kConsumers * kWarpgroup);
    const uint32_t to = ring + 2 * t * kRow + (group * 128 + warp * 16 + g) * 4;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int i = 0; i < Config::kM / 2; ++i) {
        StoreShared1(to + (i / 4 * 8 + i % 2) * kRow + m * 256 + (i & 2) * 16,
                     acc[m][i]);
      }
    }
  } else {
    float acc[1][Config::kN / 2];
    MultiplySamples<typename Config::T, Contiguous::kReduction,
                    Contiguous::kRows>(acc, stages, ring + group * kBoxBytes,
                                       filter, Config::kStageBytes, shared.ring,
                                       at);
    NamedBarrier(kMultiplied, kConsumers * kWarpgroup);
    const uint32_t to = ring + (group * 64 + warp * 16 + g) * kRow + t * 8;
#pragma unroll
    for (int i = 0; i < Config::kN / 2; i += 4) {
      StoreShared2(to + i * 8, make_float2(acc[0][i], acc[0][i + 1]));
      StoreShared2(to + 8 * kRow + i * 8,
                   make_float2(acc[0][i + 2], acc[0][i + 3]));
    }
  }
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_DEFORM_DEFORM_MULTIPLY_CUH_
