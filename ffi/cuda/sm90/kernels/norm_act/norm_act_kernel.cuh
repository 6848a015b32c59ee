// SPDX-License-Identifier: Apache-2.0
// y = conv(act(scale x + shift), w) + bias + residual, and sums of y, by one
// persistent, warp-specialised implicit GEMM.
//
// A tile's pixels of x, its halo, come to shared memory once for all taps, 64
// channels at a time. Warps of their own read, activate and write it back, once
// for nine products of a 3x3 filter. A tap's operand is the halo from another
// pixel on: the swizzle follows from the address, and an operand's groups of
// eight pixels may lie any number of bytes apart. Two warpgroups multiply tiles
// of their own in turns: while one multiplies, the other adds the residual,
// rounds, sums and stores.
//
// Sums run over blocks of 64 channels, then over taps, and depend on neither
// tile size nor batch.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_NORM_ACT_NORM_ACT_KERNEL_CUH_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_NORM_ACT_NORM_ACT_KERNEL_CUH_

#include "cuda/sm90/kernels/norm_act/norm_act_halo.cuh"
#include "cuda/sm90/kernels/norm_act/norm_act_store.cuh"

namespace jax_convbatch::hopper {

// The hardware barrier of a warpgroup that multiplies is this and its number.
inline constexpr int kNormActBarrier = 1;

// acc += a b, with a Contiguous::kReduction.
template <typename T, Contiguous kB, int kN>
__device__ __forceinline__ void WgmmaNormAct(float (&d)[kN / 2], uint64_t a,
                                             uint64_t b) {
  if constexpr (kIsResidueN<kN>) {
    WgmmaResidueN<T, kB, kN>(d, a, b);
  } else {
    Wgmma<T, Contiguous::kReduction, kB, kN>(d, a, b);
  }
}

// The products of a tile. `issued` is called when all are under way.
template <typename Config, typename Issued>
__device__ __forceinline__ void MultiplyHalos(
    const NormActProblem& problem, uint32_t shared,
    NormActBarriers<Config>& barriers, RingPosition<Config::kHalos>& halo,
    RingPosition<Config::kStages>& at, float (&acc)[2][Config::kN / 2],
    Issued issued) {
  const ReleaseOwn release;
  constexpr uint64_t kStepB = kReductionStep<Config::kWeights>;
  // The distance of groups of eight pixels in place of 1024 bytes.
  const uint64_t layout =
      kDescriptorBase +
      (static_cast<uint64_t>(problem.eight_step - (1024 >> 4)) << 32);
  int used_stage = -1, used_halo = -1;
  auto release_used = [&] {
    if (used_stage < 0) return;
    release(SharedAddress(&barriers.weights.empty[used_stage]));
    if (used_halo < 0) return;
    release(SharedAddress(&barriers.used[used_halo]));
    used_halo = -1;
  };
  const int count = problem.channel_blocks * problem.taps_h * problem.taps_w;
  uint64_t a = 0;
  int r = 0, s = 0;
  for (int i = 0; i < count; ++i) {
    if (r == 0 && s == 0) {
      uint64_t* ready =
          Config::kGradient ? barriers.copied : barriers.activated;
      BarrierWait(SharedAddress(&ready[halo.stage]), halo.round);
      a = layout + ((shared + halo.stage * Config::kHaloBytes & 0x3FFFF) >> 4);
    }
    BarrierWait(SharedAddress(&barriers.weights.full[at.stage]), at.round);
    const uint64_t b = Descriptor(shared + Config::kWeightOffset +
                                  at.stage * Config::kWeightBytes);
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        WgmmaNormAct<typename Config::T, Config::kWeights, Config::kN>(
            acc[m],
            a + k * kReductionStep<Contiguous::kReduction> +
                m * problem.block_step,
            b + k * kStepB);
      }
    }
    WgmmaCommit();
    WgmmaWait<1>();
    release_used();
    used_stage = at.stage;
    at.Advance();
    a += problem.tap_step;
    if (++s == problem.taps_w) {
      s = 0;
      a += problem.row_step;
      if (++r == problem.taps_h) {
        r = 0;
        used_halo = halo.stage;
        halo.Advance();
      }
    }
  }
  issued();
  WgmmaWait<0>();
  release_used();
}

template <typename Config>
__device__ __forceinline__ void ConsumeHalos(
    const NormActProblem& problem, int group, uint8_t* memory, uint32_t shared,
    NormActBarriers<Config>& barriers) {
  using T = typename Config::T;
  constexpr int kN = Config::kN;
  const bool signals = threadIdx.x % 32 == 0;
  const bool leads = threadIdx.x % kWarpgroup == 0;
  const int taps = problem.taps_h * problem.taps_w;
  const uint32_t buffer = shared + Config::kOutputOffset;
  float* const sums = reinterpret_cast<float*>(memory + Config::kSumOffset);
  RingPosition<Config::kHalos> halo;
  RingPosition<Config::kStages> at;
  ForNormActTiles<Config>(problem, [&](const NormActPlace& place, int turn) {
    if (turn % kConsumers != group) {
      halo.Skip(problem.channel_blocks);
      at.Skip(problem.channel_blocks * taps);
      return;
    }
    float acc[2][kN / 2];
    {
      TileBias<T, kN / 8> bias{false};
      bias.Load(problem.bias, place.channel, problem.k);
      BeginSums(acc, [&](int, int i) { return bias.First(i); });
    }
    // As in conv_kernel.cuh: a phase tells a stage's next round only from this.
    if (turn > 0) {
      BarrierWait(SharedAddress(&barriers.turn[group]),
                  (turn - 1) / kConsumers & 1);
    }
    MultiplyHalos<Config>(problem, shared, barriers, halo, at, acc, [&] {
      if (signals) BarrierArrive(SharedAddress(&barriers.turn[1 - group]));
    });
    // No warp is two tiles ahead of this barrier, nor of the residual's: the
    // four of a warpgroup multiply together.
    if (turn > 0) BarrierWait(SharedAddress(&barriers.stored), turn - 1 & 1);
    if (problem.has_residual) {
      if (leads) {
        CopyResidual<kN>(problem, place, buffer,
                         SharedAddress(&barriers.residual));
      }
      BarrierWait(SharedAddress(&barriers.residual), turn & 1);
    }
    if constexpr (Config::kGradient) {
      WriteGradientTile<T, kN>(problem, place, acc, buffer,
                               buffer + Config::kTileBytes, sums);
    } else {
      WriteNormActTile<T, kN>(problem, place, acc, buffer, sums);
    }
    FenceAsyncProxy();
    NamedBarrier(kNormActBarrier + group, kWarpgroup);
    StorePartials<kN>(problem, place, sums);
    NamedBarrier(kNormActBarrier + group, kWarpgroup);
    if (leads) {
      if constexpr (Config::kGradient) {
        StoreBlocks<kN>(problem, place, problem.activated, buffer);
        StoreBlocks<kN>(problem, place, problem.output,
                        buffer + Config::kTileBytes);
      } else {
        StoreBlocks<kN>(problem, place, problem.output, buffer);
      }
      StoreWaitRead<0>();
      BarrierArrive(SharedAddress(&barriers.stored));
    }
  });
}

template <typename Config>
__global__ void __launch_bounds__(kNormActThreads, 1)
    NormActKernel(const __grid_constant__ NormActProblem problem) {
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& barriers = *reinterpret_cast<NormActBarriers<Config>*>(
      memory + Config::kBarrierOffset);
  const uint32_t shared = SharedAddress(memory);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  if (threadIdx.x == 0) {
    PrefetchMap(problem.input);
    PrefetchMap(problem.weights);
    barriers.Init();
  }
  __syncthreads();
  const int warpgroup = warp / (kWarpgroup / 32);
  if (warpgroup >= kConsumers) {
    GiveRegisters<kActivatorRegisters>();
    const int number = warp - kConsumers * (kWarpgroup / 32);
    if (number < kActivators) {
      if constexpr (!Config::kGradient) {
        ActivateHalos<Config>(problem, number, shared, barriers);
      }
    } else if (number == kActivators) {
      if (ElectOne()) CopyHalosAndWeights<Config>(problem, shared, barriers);
    }
  } else {
    TakeRegisters<kNormActRegisters>();
    ConsumeHalos<Config>(problem, warpgroup, memory, shared, barriers);
  }
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_NORM_ACT_NORM_ACT_KERNEL_CUH_
