// SPDX-License-Identifier: Apache-2.0
// The row bands of narrow groups: pixels are the rows of products of one group
// each, as what channels as rows would multiply is zeros for the most part. All
// else is as in row_band_kernel.cuh. Where a stride leads from an output to
// every other pixel, a row band is a box of each residue class.
#pragma once

#include "cuda/sm90/kernels/row_band/few_groups.cuh"
#include "cuda/sm90/kernels/row_band/row_band_launch.cuh"
#include "cuda/sm90/mainloop/group_stages.cuh"

namespace jax_convbatch::hopper {

template <typename T, Contiguous kWeights, int kWidth, typename Few>
__device__ __forceinline__ void MultiplyGroupRowBands(
    const RowBandProblem& problem, const Few& few, int group, uint32_t filter,
    uint32_t ring, RowBandBarriers& barriers) {
  const RowBandTiling& tiling = problem.tiling;
  const int taps = problem.taps_h.count * problem.taps_w.count;
  const bool signals = threadIdx.x % 32 == 0;
  const int blocks = (tiling.rows * tiling.width + 63) / 64;
  ForRowBands<false>(problem, [&](const RowBandTile& tile) {
    if (tile.turn % kConsumers != group) return;
    if (tile.turn > 0) {
      BarrierWait(SharedAddress(&barriers.turn[group]),
                  (tile.turn - 1) / kConsumers & 1);
    }
    const uint32_t band = ring + tile.stage * tiling.stage_bytes;
    auto multiply = [&](auto count) {
      constexpr int kRows = decltype(count)::value;
      float acc[kRows][32];
#pragma unroll
      for (int m = 0; m < kRows; ++m) {
#pragma unroll
        for (float& a : acc[m]) a = 0.0f;
      }
      BarrierWait(SharedAddress(&barriers.full[tile.stage]), tile.round);
      const uint64_t a = Descriptor(band);
      uint64_t b = Descriptor(filter);
      for (int tap = 0; tap < taps; ++tap) {
        if constexpr (!kIsFew<Few>) {
          BarrierWait(SharedAddress(&barriers.filter[tap]), 0);
        }
        WgmmaFence();
        MultiplyGroups<T, kWeights, kWidth>(acc, a + problem.tap_at[tap], b);
        WgmmaCommit();
        if (tap + 1 == taps && signals) {
          BarrierArrive(SharedAddress(&barriers.turn[1 - group]));
        }
        WgmmaWait<1>();
        b += problem.tap_bytes >> 4;
      }
      WgmmaWait<0>();
      // Every warp's products have read the row band.
      NamedBarrier(1 + group, kWarpgroup);
      WriteGroupRowBand<T>(acc, problem, tile.rows, band);
      if constexpr (kIsFew<Few>) {
        if (__any_sync(~0u, HasNan(acc, problem, tile.rows))) {
          RepairRowBand<T, kWeights == Contiguous::kReduction>(
              problem, few, tile, kRows, band);
        }
      }
    };
    if (blocks == 1) {
      multiply(std::integral_constant<int, 1>());
    } else if (blocks == 2) {
      multiply(std::integral_constant<int, 2>());
    } else {
      multiply(std::integral_constant<int, 4>());
    }
    FenceAsyncProxy();
    __syncwarp();
    if (signals) BarrierArrive(SharedAddress(&barriers.written[tile.stage]));
  });
}

// kWidth: see group_width.h. Few: FewGroups, or Whole.
template <typename T, Contiguous kWeights, int kWidth, typename Few>
__global__ void __launch_bounds__(kThreads, 1)
    GroupRowBandKernel(const __grid_constant__ RowBandProblem problem,
                       const __grid_constant__ Few few) {
  extern __shared__ __align__(1024) uint8_t memory[];
  const int taps = problem.taps_h.count * problem.taps_w.count;
  const int filter_bytes = taps * problem.tap_bytes;
  auto& barriers = *reinterpret_cast<RowBandBarriers*>(
      memory + filter_bytes +
      problem.tiling.stages * problem.tiling.stage_bytes);
  const uint32_t filter = SharedAddress(memory);
  const uint32_t ring = filter + filter_bytes;
  // By a warp of its own.
  if (threadIdx.x == 64) {
    PrefetchMap(problem.input[0]);
    PrefetchMap(problem.weights);
    PrefetchMap(problem.output);
  }
  if (threadIdx.x == 0) {
    barriers.InitFirst(taps);
    LoadFirst<kWeights, false, kWidth, !kIsFew<Few>>(problem, filter, ring,
                                                     barriers);
  }
  if constexpr (kIsFew<Few>) {
    BuildFilter(problem, few, RowBandShare(problem).channel, filter);
  }
  if (threadIdx.x == 96) barriers.Init();
  __syncthreads();

  const int warpgroup = __shfl_sync(~0u, threadIdx.x / kWarpgroup, 0);
  if (warpgroup == 0) {
    GiveRegisters<kProducerRegisters>();
    if (threadIdx.x == 0) {
      LoadRowBands<false, kWidth>(problem, ring, barriers);
    } else if (threadIdx.x == 64) {
      StoreRowBands<false>(problem, ring, barriers);
    }
  } else {
    TakeRegisters<kConsumerRegisters>();
    MultiplyGroupRowBands<T, kWeights, kWidth>(problem, few, warpgroup - 1,
                                               filter, ring, barriers);
  }
}

template <typename T, Contiguous kWeights, int kWidth, typename Few>
cudaError_t RunGroupRowBand(const ConvCall& call, const Activations& in,
                            const Activations& out, const SubproblemAxes& sub,
                            const Few& few, Stage stage, cudaStream_t stream) {
  RowBandProblem problem{};
  if (!MakeRowBandProblem(call, in, out, sub, &problem)) {
    return cudaErrorInvalidValue;
  }
  return LaunchRowBand(&GroupRowBandKernel<T, kWeights, kWidth, Few>, problem,
                       call, stage, stream, few);
}

}  // namespace jax_convbatch::hopper
