// SPDX-License-Identifier: Apache-2.0
// Long sums of few outputs an image, in K slices: each is summed from zero, and
// they are added in order. Where tiles are few, the blocks of a cluster take a
// K slice each (conv_split_k_kernel.cuh); else a block adds them, as is said
// here. All ways give the same bits: results depend on which outputs a geometry
// has, not on how many images.
#pragma once

#include "cuda/sm90/copy/pipeline.cuh"
#include "cuda/sm90/epilogue/store_tile.cuh"
#include "cuda/sm90/kernels/conv/conv_config.cuh"
#include "cuda/sm90/kernels/conv/epilogue_tile.cuh"
#include "cuda/sm90/problem/k_slices.h"

namespace jax_convbatch::hopper {

// By one warpgroup, to `first`. multiply(count, issued) forms the next `count`
// stages' sum in acc; `issued` belongs to the last.
template <int kRows, int kHalfN, typename Multiply, typename Issued>
__device__ __forceinline__ void AddInRegisters(float (&acc)[kRows][kHalfN],
                                               int iterations, int k_slices,
                                               float first, Multiply multiply,
                                               Issued issued) {
  float sum[kRows][kHalfN];
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
#pragma unroll
    for (int i = 0; i < kHalfN; ++i) sum[m][i] = first;
  }
#pragma unroll 1
  for (int k_slice = 0; k_slice < k_slices; ++k_slice) {
    const int count = KSliceBegin(iterations, k_slice + 1, k_slices) -
                      KSliceBegin(iterations, k_slice, k_slices);
    multiply(count, [&] {
      if (k_slice == k_slices - 1) issued();
    });
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
#pragma unroll
      for (int i = 0; i < kHalfN; ++i) sum[m][i] += acc[m][i];
    }
  }
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
#pragma unroll
    for (int i = 0; i < kHalfN; ++i) acc[m][i] = sum[m][i];
  }
}

inline constexpr int kSumsReadBarrier = 3;  // hardware barrier of a warpgroup

// Consume() of conv_kernel.cuh, by both warpgroups: one adds while the other
// multiplies.
template <typename Config, typename EpilogueT>
__device__ __forceinline__ void ConsumeKSlices(const ConvProblem<1>& problem,
                                               const EpilogueT& epilogue,
                                               int group, uint32_t shared,
                                               ConvBarriers<Config>& barriers) {
  static_assert(kSumKSlices % kConsumers == 0);
  const uint32_t buffer = shared + ConvShared<Config>::kStoreOffset;
  // A thread's sums lie in quads, side by side with those of the warpgroup's
  // other threads; the same thread of the other warpgroup goes on with them.
  const uint32_t sums =
      shared + ConvShared<Config>::kSumOffset + threadIdx.x % kWarpgroup * 16;
  const bool signals = threadIdx.x % 32 == 0;
  RingPosition<Config::kStages> at;
  int number = 0;  // of the tile
  ForTiles<Config>(problem, [&](const ConvTile& tile) {
    for (int k_slice = 0; k_slice < kSumKSlices; ++k_slice) {
      const int count = KSliceBegin(tile.iterations, k_slice + 1) -
                        KSliceBegin(tile.iterations, k_slice);
      if (k_slice % kConsumers != group) {
        at.Skip(count);
        continue;
      }
      // As in Consume().
      const int turn = number * kSumKSlices + k_slice;
      if (turn > 0) {
        BarrierWait(SharedAddress(&barriers.turn[group]),
                    (turn - 1) / kConsumers & 1);
      }
      float acc[Config::kM / 64][Config::kN / 2];
      MultiplyStages<typename Config::T, Contiguous::kReduction,
                     Config::kWeights>(
          acc, count, shared, shared + Config::kInputBytes, Config::kStageBytes,
          barriers.ring, at, [&] {
            if (signals) {
              BarrierArrive(SharedAddress(&barriers.turn[1 - group]));
            }
          });
      if (k_slice > 0) {
        // How often the other has added before, in this tile and others.
        const int round = (turn - 1) / kConsumers;
        const int last = number * (kSumKSlices / kConsumers - 1);
        BarrierWait(SharedAddress(&barriers.sums[1 - group]),
                    (group == 0 ? last + k_slice / kConsumers - 1 : round) & 1);
      } else if (number > 0) {
        BarrierWait(SharedAddress(&barriers.stores.free[0]), (number - 1) & 1);
      }
      auto for_quads = [&](auto visit) {
#pragma unroll
        for (int m = 0; m < Config::kM / 64; ++m) {
#pragma unroll
          for (int i = 0; i < Config::kN / 2; i += 4) {
            visit(sums + (m * Config::kN / 2 + i) / 4 * kWarpgroup * 16,
                  &acc[m][i]);
          }
        }
      };
      if (k_slice > 0) {
        for_quads([](uint32_t from, float* v) {
          const float4 other = LoadShared4(from);
          v[0] = other.x + v[0];
          v[1] = other.y + v[1];
          v[2] = other.z + v[2];
          v[3] = other.w + v[3];
        });
      }
      if (k_slice < kSumKSlices - 1) {
        for_quads([](uint32_t to, const float* v) {
          StoreShared4(to, make_float4(v[0], v[1], v[2], v[3]));
        });
        __syncwarp();
        if (signals) BarrierArrive(SharedAddress(&barriers.sums[group]));
        continue;
      }
      uint64_t* written = &barriers.stores.written[0];
      if constexpr (!Config::kSumsApart) {
        NamedBarrier(kSumsReadBarrier, kWarpgroup);
      }
      if constexpr (EpilogueT::kPresent) {
        if (epilogue.residual != nullptr) {
          BarrierWait(SharedAddress(&barriers.residual[0]), number & 1);
        }
        ScaleAndAdd<typename Config::T>(epilogue, tile.channel,
                                        problem.channels, acc);
        WriteLayerTile<typename Config::T>(
            epilogue, acc, buffer, written,
            {tile.pixel, tile.channel, tile.sub->pixels, problem.channels});
      } else {
        WriteTile<typename Config::T>(acc, buffer, written);
      }
    }
    ++number;
  });
}

}  // namespace jax_convbatch::hopper
