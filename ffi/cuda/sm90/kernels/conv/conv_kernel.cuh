// SPDX-License-Identifier: Apache-2.0
// fprop and dgrad: one persistent, warp-specialised implicit GEMM.
//
// Two warps of the first warpgroup issue the copies, by one thread each:
// activations by im2col boxes of kM pixels x 64 channels, weights by tiled
// boxes, read as they lie in memory. Two warpgroups multiply, each a tile of
// its own or half of one, and write results to shared memory: of tiles of their
// own, one multiplies while the other writes. One more warp of the first
// warpgroup stores them with tensor copies, and the zeros of a strided dgrad's
// sub-problems that no tap reaches.
//
// A residual that an epilogue adds comes by the same warp's copies to the
// buffer of the tile, before the tile is written over it.
//
// Every tile shape adds in the same order, so that results do not depend on the
// tile, nor on the batch that led to its choice. Where a geometry's sums come
// in K slices, they do in all its tiles.
#pragma once

#include "cuda/sm90/copy/pipeline.cuh"
#include "cuda/sm90/epilogue/store_tile.cuh"
#include "cuda/sm90/kernels/conv/conv_config.cuh"
#include "cuda/sm90/kernels/conv/conv_copies.cuh"
#include "cuda/sm90/kernels/conv/conv_k_slices.cuh"
#include "cuda/sm90/kernels/conv/epilogue_tile.cuh"
#include "cuda/sm90/kernels/conv/residue_k_stages.cuh"
#include "cuda/sm90/kernels/conv/residue_n_tiles.cuh"
#include "cuda/sm90/mainloop/group_stages.cuh"
#include "cuda/sm90/problem/conv_problem.h"

namespace jax_convbatch::hopper {

// Hardware barriers of the prologue: the first stages' mbarriers stand, and
// whatever else the block needs; all mbarriers stand.
inline constexpr int kFirstBarrier = 1, kRestBarrier = 2;

// What the kernel is told: with stages of residue_k_stages.cuh or without.
// There are none before an epilogue of any kind, as two ways to multiply and
// all of that are much code, nor where warpgroups share a stage's pixels or
// sums come in K slices.
template <typename Config, int kSubs, typename EpilogueT>
using ProblemOf =
    std::conditional_t<kSubs == 1 && !Config::kCooperative &&
                           Config::kWidth == kOneGroup &&
                           Config::kSum == Sum::kWhole &&
                           (EpilogueT::kPlain || !EpilogueT::kPresent),
                       ResidueKProblem, ConvProblem<kSubs>>;

// The first channel of the tile that a warpgroup has after one that begins with
// `channel`.
template <typename Config>
__device__ __forceinline__ int NextChannel(const ConvProblem<1>& problem,
                                           int channel) {
  const int stride = (Config::kCooperative ? 1 : kConsumers) * gridDim.x;
  const int next = channel + stride % problem.n_tiles * Config::kN;
  const int all = int(problem.n_tiles) * Config::kN;
  return next < all ? next : next - all;
}

// EpilogueT: what follows the convolution, NoEpilogue, Epilogue or
// PlainEpilogue. A sum begins with the bias, unless it comes in K slices or is
// scaled.
template <typename Config, typename Problem, typename EpilogueT>
__device__ __forceinline__ void Consume(const Problem& problem,
                                        const EpilogueT& epilogue, int group,
                                        uint32_t shared,
                                        ConvBarriers<Config>& barriers) {
  constexpr bool kCooperative = Config::kCooperative;
  constexpr int kStores = Config::kStores, kGroupM = Config::kGroupM;
  constexpr bool kResident = Config::kResident > 0;
  [[maybe_unused]] constexpr bool kHalfBoxes =
      Config::kWeights == Contiguous::kRows && kFilterBox<Config> < 64;
  const uint32_t weights =
      shared +
      (kResident ? ConvShared<Config>::kResidentOffset : Config::kInputBytes);
  uint32_t input = shared;
  uint32_t stores = shared + ConvShared<Config>::kStoreOffset;
  if constexpr (kCooperative) {
    input += group * kGroupM * 128;
    stores += group * kGroupM * Config::kN * 2;
  }
  const bool signals = threadIdx.x % 32 == 0;
  RingPosition<Config::kStages> at;
  int turns = 0;
  using T = typename Config::T;
  constexpr bool kKSlices = Config::kSum == Sum::kKSlices;
  static_assert(!(kKSlices && EpilogueT::kPlain));
  [[maybe_unused]] TileBias<T, Config::kN / 8> bias{kKSlices};
  if constexpr (EpilogueT::kPresent) {
    if constexpr (!EpilogueT::kPlain)
      bias.is_added |= epilogue.scale != nullptr;
    const int first = blockIdx.x + (kCooperative ? 0 : group * gridDim.x);
    bias.Load(epilogue.bias, TileAt<Config>(problem, first).channel,
              problem.channels);
  }
  if constexpr (kResident) BarrierWait(SharedAddress(&barriers.resident), 0);
  ForTiles<Config>(problem, [&](const ConvTile& tile) {
    if (tile.iterations == 0) return;
    const int turn = turns++;
    if constexpr (!kCooperative) {
      if (turn % kConsumers != group) {
        at.Skip(tile.iterations);
        return;
      }
    }
    // The phase of a stage tells its next round only from this one, so a
    // warpgroup waits until the other has seen the stages before.
    auto wait_turn = [&] {
      if constexpr (!kCooperative) {
        if (turn == 0) return;
        BarrierWait(SharedAddress(&barriers.turn[group]),
                    (turn - 1) / kConsumers & 1);
      }
    };
    auto issued = [&] {
      if constexpr (!kCooperative) {
        if (signals) {
          BarrierArrive(SharedAddress(&barriers.turn[1 - group]));
        }
      }
      // While the last stage is multiplied.
      if constexpr (EpilogueT::kPresent) {
        bias.Load(epilogue.bias,
                  bias.is_added ? tile.channel
                                : NextChannel<Config>(problem, tile.channel),
                  problem.channels);
      }
    };
    float acc[kGroupM / 64][Config::kN / 2];
    if constexpr (kKSlices) {
      wait_turn();
      AddInRegisters(
          acc, tile.iterations, kSumKSlices, -0.0f,  // leaves -0 as it is
          [&](int count, auto&& under_way) {
            MultiplyStages<T, Contiguous::kReduction, Config::kWeights>(
                acc, count, input, weights, Config::kStageBytes, barriers.ring,
                at, under_way);
          },
          issued);
    } else {
      if constexpr (EpilogueT::kPlain) {
        BeginWithBias(bias, epilogue.minus_zero, acc);
      } else if constexpr (EpilogueT::kPresent) {
        BeginSums(acc, [&](int, int i) { return bias.First(i); });
      } else {
        BeginSums(acc, [](int, int) { return 0.0f; });
      }
      wait_turn();
      auto add_whole = [&] {
        if constexpr (kIsResidueN<Config::kN>) {
          AddResidueNStages<T, Config::kWeights, kHalfBoxes>(
              acc, tile.iterations, input, weights, Config::kStageBytes,
              barriers.ring, at, issued);
        } else {
          AddStages<T, Contiguous::kReduction, Config::kWeights, kResident>(
              acc, tile.iterations, input, weights, Config::kStageBytes,
              barriers.ring, at, issued);
        }
      };
      if constexpr (kIsNarrow<Config::kWidth>) {
        AddGroupStages<T, Config::kWeights, Config::kWidth>(
            acc, tile.iterations, input, weights, Config::kStageBytes,
            barriers.ring, at, issued);
      } else if constexpr (kHasResidueK<Problem>) {
        const int channels = problem.residue_k.channels;
        if (channels > 0) {
          AddResidueKStages<T, Config::kWeights, kResident, kHalfBoxes>(
              acc, tile.iterations, problem.channel_blocks, channels, input,
              weights, Config::kStageBytes, barriers.ring, at, issued);
        } else {
          add_whole();
        }
      } else {
        add_whole();
      }
    }
    const int buffer = turn % kStores;
    const uint32_t to = stores + buffer * Config::kTileBytes;
    uint64_t* written = &barriers.stores.written[buffer];
    auto wait_free = [&] {
      if (turn < kStores) return;
      const int round = (turn - kStores) / (kCooperative ? 1 : kConsumers);
      BarrierWait(SharedAddress(&barriers.stores.free[group]), round & 1);
    };
    const LayerPlace place = {tile.pixel + (kCooperative ? group * kGroupM : 0),
                              tile.channel, tile.sub->pixels, problem.channels};
    if constexpr (EpilogueT::kPlain) {
      wait_free();
      WritePlainTile<T>(epilogue, acc, to, written, place);
    } else if constexpr (EpilogueT::kPresent) {
      if (epilogue.residual != nullptr) {
        BarrierWait(SharedAddress(&barriers.residual[buffer]),
                    turn / kStores & 1);
      } else {
        wait_free();
      }
      if (bias.is_added) {
        ScaleAndAdd(epilogue, tile.channel, problem.channels, bias, acc);
      }
      WriteLayerTile<T>(epilogue, acc, to, written, place);
    } else {
      wait_free();
      if constexpr (kIsResidueN<Config::kN>) {
        WriteResidueNTile<T>(acc, to, written);
      } else {
        WriteTile<T>(acc, to, written);
      }
    }
  });
}

// Copies the residual of the block's tile number `turn` to its buffer.
template <typename Config>
__device__ __forceinline__ void IssueResidual(const ConvProblem<1>& problem,
                                              const Epilogue& epilogue,
                                              int turn, uint32_t stores,
                                              ConvBarriers<Config>& barriers) {
  const int t = blockIdx.x + turn * gridDim.x;
  if (t >= problem.tiles) return;
  const ConvTile tile = TileAt<Config>(problem, t);
  const int number = turn % Config::kStores;
  const uint32_t barrier = SharedAddress(&barriers.residual[number]);
  const uint32_t buffer = stores + number * Config::kTileBytes;
  const int pixels = min(Config::kM, tile.sub->pixels - tile.pixel);
  const int channels = min(Config::kN, problem.channels - tile.channel);
  BarrierArriveExpect(barrier,
                      (pixels + 63) / 64 * ((channels + 63) / 64) * kBoxBytes);
  for (int m = 0; m < pixels; m += 64) {
    for (int n = 0; n < channels; n += 64) {
      LoadTile2(buffer + (m / 64 * (Config::kN / 64) + n / 64) * kBoxBytes,
                epilogue.residual_boxes, barrier, tile.channel + n,
                tile.pixel + m);
    }
  }
}

// By one thread.
template <typename Config, int kSubs, typename EpilogueT>
__device__ __forceinline__ void IssueStores(const ConvProblem<kSubs>& problem,
                                            const EpilogueT& epilogue,
                                            uint32_t shared,
                                            ConvBarriers<Config>& barriers) {
  constexpr int kM = Config::kM, kN = Config::kN, kStores = Config::kStores;
  constexpr bool kGroups = Config::kWidth == kAnyGroups;
  const uint32_t stores = shared + ConvShared<Config>::kStoreOffset;
  auto& written = barriers.stores.written;
  auto& free = barriers.stores.free;
  int turns = 0;
  // Tiles whose stores would hold up the loads of others.
  const int blocks = gridDim.x, block = blockIdx.x;
  int before_last =
      (problem.tiles - 1 - block - SecondTile(problem) + blocks) / blocks;
  const bool paces = kSubs == 1 || Config::kZeros ||
                     problem.sub[0].iterations >= kPacedClasses;
  auto residual = [&](int turn) {
    if constexpr (EpilogueT::kPresent && !EpilogueT::kPlain) {
      if (epilogue.residual == nullptr) return;
      // Its buffer may still be on the way out.
      if (turn >= kStores) StoreWaitRead<0>();
      IssueResidual<Config>(problem, epilogue, turn, stores, barriers);
    }
  };
  for (int turn = 0; turn < kStores - 1; ++turn) residual(turn);
  ForTiles<Config>(problem, [&](const ConvTile& tile) {
    const bool paced = before_last-- > 0 && paces &&
                       tile.iterations >= kPacedIterations &&
                       Config::kResident == 0;
    if (tile.iterations > 0) {
      residual(turns + kStores - 1);
      const int buffer = turns % kStores;
      BarrierWait(SharedAddress(&written[buffer]), turns / kStores & 1);
      const uint32_t from = stores + buffer * Config::kTileBytes;
      if constexpr (kIsResidueN<kN>) {
        StoreResidueNTile<kM, kN>(*tile.sub, from, paced, tile.pixel,
                                  tile.channel, problem.channels);
      } else {
        StoreTile<kM, kN, kSubs == 1, kGroups>(
            *tile.sub, from, kBoxBytes, paced, tile.pixel,
            kGroups ? tile.in_group : tile.channel, problem.channels,
            problem.volumes, tile.group);
      }
      StoreWaitRead<kStores - 1>();
      // What was written kStores - 1 turns before this one has been read.
      if (++turns >= kStores) {
        for (int group = 0; group < kConsumers; ++group) {
          // Of a tile whose K slices they share, the first waits.
          if (Config::kCooperative ||
              group == (Config::kSumBytes > 0 ? 0 : turns % kConsumers)) {
            BarrierArrive(SharedAddress(&free[group]));
          }
        }
      }
    } else if constexpr (Config::kZeros) {
      if (tile.sub->iterations == 0) {
        StoreTile<kM, kN, kSubs == 1, kGroups>(
            *tile.sub, shared + ConvShared<Config>::kZeroOffset, 0, false,
            tile.pixel, kGroups ? tile.in_group : tile.channel,
            problem.channels, problem.volumes, tile.group);
      }
    }
  });
  StoreWaitRead<0>();  // shared memory must outlive the stores that read it
}

template <typename Config, int kSubs, typename EpilogueT>
__global__ void __launch_bounds__(kThreads, 1) ConvKernel(
    const __grid_constant__ ProblemOf<Config, kSubs, EpilogueT> problem,
    const __grid_constant__ EpilogueT epilogue) {
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& barriers = *reinterpret_cast<ConvBarriers<Config>*>(
      memory + ConvShared<Config>::kBarrierOffset);
  const uint32_t shared = SharedAddress(memory);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  // The first warp does not wait for the others before it copies.
  if (warp == 0) {
    if (ElectOne()) barriers.InitFirst();
    NamedBarrierArrive(kFirstBarrier, kThreads);
    const ConvTile tile = TileAt<Config>(problem, blockIdx.x);
    ByAxes<Config>(problem, [&](auto volumes) {
      const StageWalk<decltype(volumes)::value> walk(tile);
      if (ElectOne()) {
        if constexpr (Config::kResident > 0) {
          LoadResident<Config>(problem, tile,
                               shared + ConvShared<Config>::kResidentOffset,
                               &barriers.resident);
        }
        CopyFirstStages<Config>(problem, tile, walk, tile.iterations, shared,
                                barriers.ring);
      }
    });
    NamedBarrier(kRestBarrier, 64);
  } else {
    if (threadIdx.x == 64) {
      PrefetchMap(problem.sub[0].input);
      PrefetchMap(problem.weights);
      PrefetchMap(problem.sub[0].output);
    }
    if (warp == 3) {
      if (ElectOne()) barriers.Init();
      NamedBarrierArrive(kRestBarrier, 64);
    }
    if constexpr (Config::kZeros) {
      uint8_t* zeros = memory + ConvShared<Config>::kZeroOffset;
      for (int i = threadIdx.x - 32; i < kBoxBytes / 16; i += kThreads - 32) {
        reinterpret_cast<uint4*>(zeros)[i] = uint4{};
      }
      FenceAsyncProxy();
    }
    NamedBarrier(kFirstBarrier, kThreads);
  }

  // Small tiles need no more registers than each warpgroup has.
  constexpr bool kTrades = (EpilogueT::kPresent && !EpilogueT::kPlain) ||
                           Config::kGroupM * Config::kN > 64 * 128;
  if (warp < kWarpgroup / 32) {
    if constexpr (kTrades) GiveRegisters<kProducerRegisters>();
    if (warp == 0) {
      IssueCopies<Config, Operand::kInput>(problem, shared, barriers.ring);
    } else if (Config::kResident == 0 && warp == 1) {
      IssueCopies<Config, Operand::kWeights>(problem, shared, barriers.ring);
    } else if (threadIdx.x == 64) {
      IssueStores<Config>(problem, epilogue, shared, barriers);
    }
  } else {
    if constexpr (kTrades) TakeRegisters<kConsumerRegisters>();
    const int group = threadIdx.x / kWarpgroup - 1;
    if constexpr (Config::kSumBytes > 0) {
      ConsumeKSlices<Config>(problem, epilogue, group, shared, barriers);
    } else {
      Consume<Config>(problem, epilogue, group, shared, barriers);
    }
  }
}

}  // namespace jax_convbatch::hopper
