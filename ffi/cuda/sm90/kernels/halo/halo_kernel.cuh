// SPDX-License-Identifier: Apache-2.0
// fprop and dgrad at stride 1 by one persistent, warp-specialised implicit GEMM
// that reads a tile's pixels of x, its halo, once for all taps, 128 bytes of
// channels at a time. A tap's operand is the halo from another pixel on: the
// swizzle follows from the address, and an operand's groups of eight pixels may
// lie any number of bytes apart. Two warpgroups multiply tiles of their own in
// turns: while one multiplies, the other adds the residual, rounds and stores.
//
// What is done to a halo before it is multiplied, and to the sums after, is a
// policy: see HaloConfig. Sums run over blocks of channels, then over taps, as
// those of conv_kernel.cuh and conv_tf32_kernel.cuh do: the bits are the same.
#pragma once

#include "cuda/sm90/arch/wgmma_tf32_columns.cuh"
#include "cuda/sm90/epilogue/epilogue.cuh"
#include "cuda/sm90/kernels/halo/halo_copies.cuh"
#include "cuda/sm90/kernels/halo/halo_store.cuh"

namespace jax_convbatch::hopper {

// acc += a b, with a Contiguous::kReduction.
template <typename T, Contiguous kB, int kN>
__device__ __forceinline__ void WgmmaHalo(float (&d)[kN / 2], uint64_t a,
                                          uint64_t b) {
  if constexpr (std::is_same_v<T, float>) {
    WgmmaTf32Columns<kN>(d, a, b);
  } else if constexpr (kIsResidueN<kN>) {
    WgmmaResidueN<T, kB, kN>(d, a, b);
  } else {
    Wgmma<T, Contiguous::kReduction, kB, kN>(d, a, b);
  }
}

// The products of a tile, by `taps_d` taps of depth. `issued` is called when
// all are under way.
template <typename Config, typename Issued>
__device__ __forceinline__ void MultiplyHalos(
    const HaloProblem& problem, int taps_d, uint32_t shared,
    HaloBarriers<Config>& barriers, RingPosition<Config::kHalos>& halo,
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
  const int of_block = taps_d * problem.taps_h * problem.taps_w;
  uint64_t a = 0;
  int r = 0, s = 0;
  auto multiply = [&](uint64_t from, uint64_t b) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      WgmmaHalo<typename Config::T, Config::kWeights, Config::kN>(
          acc[m], from + m * problem.block_step, b);
    }
  };
  auto add_stages = [&](int count, auto add_stage) {
    for (int i = 0; i < count; ++i) {
      if (r == 0 && s == 0) {
        uint64_t* ready =
            Config::kActivators > 0 ? barriers.activated : barriers.copied;
        BarrierWait(SharedAddress(&ready[halo.stage]), halo.round);
        a = layout +
            ((shared + halo.stage * Config::kHaloBytes & 0x3FFFF) >> 4);
      }
      BarrierWait(SharedAddress(&barriers.weights.full[at.stage]), at.round);
      const uint64_t b = Descriptor(shared + Config::kWeightOffset +
                                    at.stage * Config::kWeightBytes);
      WgmmaFence();
      add_stage(b);
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
  };
  constexpr uint64_t kStepA = kReductionStep<Contiguous::kReduction>;
  auto add_blocks = [&](int blocks, auto steps) {
    add_stages(blocks * of_block, [&](uint64_t b) {
#pragma unroll
      for (int k = 0; k < decltype(steps)::value; ++k) {
        multiply(a + k * kStepA, b + k * kStepB);
      }
    });
  };
  const int halves = problem.last_is_half ? 1 : 0;
  add_blocks(problem.channel_blocks - halves, std::integral_constant<int, 4>());
  add_blocks(halves, std::integral_constant<int, 2>());
  issued();
  WgmmaWait<0>();
  release_used();
}

template <typename Config>
__device__ __forceinline__ void ConsumeHalos(
    const typename Config::Problem& problem, int group, uint8_t* memory,
    uint32_t shared, HaloBarriers<Config>& barriers) {
  using T = typename Config::T;
  using Policy = typename Config::Policy;
  constexpr int kN = Config::kN;
  const bool signals = threadIdx.x % 32 == 0;
  const bool leads = threadIdx.x % kWarpgroup == 0;
  const uint32_t buffer = shared + Config::kOutputOffset;
  float* const sums = reinterpret_cast<float*>(memory + Config::kSumOffset);
  RingPosition<Config::kHalos> halo;
  RingPosition<Config::kStages> at;
  ForHaloTiles<Config>(problem, [&](const HaloPlace& place, int turn) {
    const DepthTaps depth = DepthTapsOf(problem, place.pixels);
    const int taps_d = depth.end - depth.first;
    if (turn % kConsumers != group) {
      const int halos = problem.channel_blocks * taps_d;
      halo.Skip(halos);
      at.Skip(halos * problem.taps_h * problem.taps_w);
      return;
    }
    float acc[2][kN / 2];
    if constexpr (Config::kTf32) {
      BeginSums(acc, [](int, int) { return 0.0f; });
    } else {
      TileBias<T, kN / 8> bias{problem.channel_scale != nullptr};
      bias.Load(problem.bias, place.channel, problem.k);
      BeginSums(acc, [&](int, int i) { return bias.First(i); });
    }
    // As in conv_kernel.cuh: a phase tells a stage's next round only from this.
    if (turn > 0) {
      BarrierWait(SharedAddress(&barriers.turn[group]),
                  (turn - 1) / kConsumers & 1);
    }
    MultiplyHalos<Config>(
        problem, taps_d, shared, barriers, halo, at, acc, [&] {
          if (signals) BarrierArrive(SharedAddress(&barriers.turn[1 - group]));
        });
    // No warp is two tiles ahead of this barrier, nor of the residual's: the
    // four of a warpgroup multiply together.
    if (turn > 0) BarrierWait(SharedAddress(&barriers.stored), turn - 1 & 1);
    if (problem.has_residual) {
      if (leads) {
        CopyHaloResidual<Config>(problem, place, buffer,
                                 SharedAddress(&barriers.residual));
      }
      BarrierWait(SharedAddress(&barriers.residual), turn & 1);
    }
    Policy::template Write<Config>(problem, place, acc, buffer, sums);
    FenceAsyncProxy();
    NamedBarrier(kHaloBarrier + group, kWarpgroup);
    if constexpr (Policy::kSums > 0) {
      Policy::template StorePartials<Config>(problem, place, sums);
      NamedBarrier(kHaloBarrier + group, kWarpgroup);
    }
    if (leads) {
      Policy::template Store<Config>(problem, place, buffer);
      StoreWaitRead<0>();
      BarrierArrive(SharedAddress(&barriers.stored));
    }
  });
}

template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    HaloKernel(const __grid_constant__ typename Config::Problem problem) {
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& barriers =
      *reinterpret_cast<HaloBarriers<Config>*>(memory + Config::kBarrierOffset);
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
    GiveRegisters<Config::kOtherRegisters>();
    const int number =
        warp - kConsumers * (kWarpgroup / 32) - Config::kActivators;
    if (number < 0) {
      if constexpr (Config::kActivators > 0) {
        Config::Policy::template Activate<Config>(
            problem, number + Config::kActivators, shared, barriers);
      }
    } else if (number == 0) {
      if (ElectOne()) CopyHalos<Config>(problem, shared, barriers);
    } else if (number == 1) {
      if (ElectOne()) CopyHaloWeights<Config>(problem, shared, barriers);
    }
  } else {
    TakeRegisters<Config::kRegisters>();
    ConsumeHalos<Config>(problem, warpgroup, memory, shared, barriers);
  }
}

}  // namespace jax_convbatch::hopper
