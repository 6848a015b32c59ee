// fprop and dgrad: one persistent, warp-specialised implicit GEMM.
//
// Two threads of the first warpgroup issue the copies: activations by im2col
// boxes of kM pixels x 64 channels, weights by tiled boxes, read as they lie in
// memory. Two warpgroups multiply, each a tile of its own, and write results to
// shared memory: while one multiplies, the other writes. One more warp of the
// first warpgroup stores them with tensor copies, and the zeros of a strided
// dgrad's parts that no tap reaches.
//
// A residual that an epilogue adds comes by the same warp's copies to the
// buffer of the tile, before the tile is written over it.
//
// The reduction is never split: every tile shape adds in the same order, so
// that results do not depend on the tile, nor on the batch that led to its
// choice.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_CONV_KERNEL_CUH_
#define JAX_CONVBATCH_CUDA_HOPPER_CONV_KERNEL_CUH_

#include "cuda/hopper/conv_config.cuh"
#include "cuda/hopper/conv_problem.h"
#include "cuda/hopper/epilogue.cuh"
#include "cuda/hopper/pipeline.cuh"
#include "cuda/hopper/store_tile.cuh"

namespace jax_convbatch::hopper {

// Where the next stage of a tile comes from: a tap, a block of channels, and
// for the input the base pixel of the tile's first pixel.
struct StageWalk {
  int w, h, image;
  int r = 0, s = 0, block = 0;

  __device__ StageWalk(const ConvPart& part, int pixel) {
    const int row = pixel / part.cols;
    image = row / part.rows;
    w = part.input_w + (pixel - row * part.cols) * part.input_step_w;
    h = part.input_h + (row - image * part.rows) * part.input_step_h;
  }

  __device__ void Advance(const ConvPart& part, int channel_blocks) {
    if (++block == channel_blocks) {
      block = 0;
      if (++s == part.taps_w.count) {
        s = 0;
        ++r;
      }
    }
  }
};

// One warp issues the input's copies, another the weights': it helps small
// tiles, which are bound by how fast copies are issued. The whole warp walks,
// so that what it works out is known to be the same in all lanes, and one lane
// issues.
enum class Operand { kInput, kWeights };

template <typename Config>
__device__ __forceinline__ void CopyInput(const ConvPart& part,
                                          const StageWalk& walk, uint32_t to,
                                          uint32_t full) {
  BarrierArriveExpect(full, Config::kInputBytes);
  LoadIm2col(to, part.input, full, walk.block * 64, walk.w, walk.h, walk.image,
             walk.s * part.taps_w.offset_step,
             walk.r * part.taps_h.offset_step);
}

template <typename Config, int kParts>
__device__ __forceinline__ void LoadWeights(const ConvProblem<kParts>& problem,
                                            uint32_t to, uint32_t full,
                                            int block, int channel, int tap) {
  if constexpr (Config::kWeights == Contiguous::kRows) {
#pragma unroll
    for (int n = 0; n < Config::kN; n += 64) {
      LoadTile3(to + n * 128, problem.weights, full, channel + n, block * 64,
                tap);
    }
  } else {
    LoadTile3(to, problem.weights, full, block * 64, channel, tap);
  }
}

template <typename Config, int kParts>
__device__ __forceinline__ void CopyWeights(const ConvProblem<kParts>& problem,
                                            const ConvTile& tile,
                                            const StageWalk& walk, uint32_t to,
                                            uint32_t full) {
  const ConvPart& part = *tile.part;
  BarrierArriveExpect(full, Config::kWeightBytes);
  const int tap =
      (part.taps_h.tap + walk.r * part.taps_h.tap_step) * problem.filter_width +
      part.taps_w.tap + walk.s * part.taps_w.tap_step;
  LoadWeights<Config>(problem, to, full, walk.block, tile.channel, tap);
}

// Of a filter of one tap: all that a tile sums.
template <typename Config, int kParts>
__device__ __forceinline__ void LoadResident(const ConvProblem<kParts>& problem,
                                             const ConvTile& tile, uint32_t to,
                                             uint64_t* barrier) {
  const uint32_t full = SharedAddress(barrier);
  BarrierArriveExpect(full, tile.iterations * Config::kWeightBytes);
  for (int i = 0; i < tile.iterations; ++i) {
    LoadWeights<Config>(problem, to + i * Config::kWeightBytes, full, i,
                        tile.channel, 0);
  }
}

// Copies the first stages of a block's first tile, by one warp and before the
// block's other barriers stand: a short launch waits for its first copy. The
// code stands first in the kernel, as a jump waits for its instructions.
template <typename Config, int kParts>
__device__ __forceinline__ void CopyFirstStages(
    const ConvProblem<kParts>& problem, uint32_t ring,
    ConvBarriers<Config>& barriers) {
  const ConvTile tile = TileAt<Config>(problem, blockIdx.x);
  StageWalk walk(*tile.part, tile.pixel);
  if (!ElectOne()) return;
  if constexpr (Config::kResident > 0) {
    LoadResident<Config>(problem, tile,
                         ring + ConvShared<Config>::kResidentOffset,
                         &barriers.resident);
  }
#pragma unroll
  for (int i = 0; i < kFirstStages; ++i) {
    if (i >= tile.iterations) return;
    const uint32_t full = SharedAddress(&barriers.ring.full[i]);
    const uint32_t input = ring + i * Config::kStageBytes;
    CopyInput<Config>(*tile.part, walk, input, full);
    if constexpr (Config::kResident == 0) {
      CopyWeights<Config>(problem, tile, walk, input + Config::kInputBytes,
                          full);
    }
    walk.Advance(*tile.part, problem.channel_blocks);
  }
}

// All other stages.
template <typename Config, Operand kOperand, int kParts>
__device__ __forceinline__ void IssueCopies(
    const ConvProblem<kParts>& problem, uint32_t ring,
    RingBarriers<Config::kStages>& barriers) {
  RingPosition<Config::kStages> at;
  int copied = kFirstStages;
  ForTiles<Config>(problem, [&](const ConvTile& tile) {
    StageWalk walk(*tile.part, tile.pixel);
    int i = 0;
#pragma unroll 1
    for (; i < min(copied, tile.iterations); ++i) {
      at.Advance();
      walk.Advance(*tile.part, problem.channel_blocks);
    }
    copied = 0;
    for (; i < tile.iterations; ++i) {
      const uint32_t full = SharedAddress(&barriers.full[at.stage]);
      const uint32_t input = ring + at.stage * Config::kStageBytes;
      BarrierWait(SharedAddress(&barriers.empty[at.stage]), at.round ^ 1);
      if (ElectOne()) {
        if constexpr (kOperand == Operand::kInput) {
          CopyInput<Config>(*tile.part, walk, input, full);
        } else {
          CopyWeights<Config>(problem, tile, walk, input + Config::kInputBytes,
                              full);
        }
      }
      at.Advance();
      walk.Advance(*tile.part, problem.channel_blocks);
    }
  });
}

// Hardware barriers of the prologue: the first stages' mbarriers stand, and
// whatever else the block needs; all mbarriers stand.
inline constexpr int kFirstBarrier = 1, kRestBarrier = 2;

// After: what follows the convolution, NoEpilogue or Epilogue.
template <typename Config, int kParts, typename After>
__device__ __forceinline__ void Consume(const ConvProblem<kParts>& problem,
                                        const After& after, int group,
                                        uint32_t shared,
                                        ConvBarriers<Config>& barriers) {
  constexpr bool kTogether = Config::kTogether;
  constexpr int kStores = Config::kStores, kGroupM = Config::kGroupM;
  constexpr bool kResident = Config::kResident > 0;
  const uint32_t weights =
      shared +
      (kResident ? ConvShared<Config>::kResidentOffset : Config::kInputBytes);
  uint32_t input = shared;
  uint32_t stores = shared + ConvShared<Config>::kStoreOffset;
  if constexpr (kTogether) {
    input += group * kGroupM * 128;
    stores += group * kGroupM * Config::kN * 2;
  }
  const bool signals = threadIdx.x % 32 == 0;
  RingPosition<Config::kStages> at;
  int turns = 0;
  if constexpr (kResident) BarrierWait(SharedAddress(&barriers.resident), 0);
  ForTiles<Config>(problem, [&](const ConvTile& tile) {
    if (tile.iterations == 0) return;
    const int turn = turns++;
    if constexpr (!kTogether) {
      if (turn % kConsumers != group) {
        at.Skip(tile.iterations);
        return;
      }
      // The parity of a stage tells its next round only from this one, so a
      // warpgroup waits until the other has seen the stages before.
      if (turn > 0) {
        BarrierWait(SharedAddress(&barriers.turn[group]),
                    (turn - 1) / kConsumers & 1);
      }
    }
    float acc[kGroupM / 64][Config::kN / 2];
    MultiplyStages<typename Config::T, Contiguous::kReduction, Config::kWeights,
                   kResident>(
        acc, tile.iterations, input, weights, Config::kStageBytes,
        barriers.ring, at, [&] {
          if constexpr (!kTogether) {
            if (signals) {
              BarrierArrive(SharedAddress(&barriers.turn[1 - group]));
            }
          }
        });
    const int buffer = turn % kStores;
    const uint32_t to = stores + buffer * Config::kTileBytes;
    uint64_t* written = &barriers.stores.written[buffer];
    auto wait_free = [&] {
      if (turn < kStores) return;
      const int round = (turn - kStores) / (kTogether ? 1 : kConsumers);
      BarrierWait(SharedAddress(&barriers.stores.free[group]), round & 1);
    };
    if constexpr (After::kPresent) {
      if (after.residual != nullptr) {
        BarrierWait(SharedAddress(&barriers.residual[buffer]),
                    turn / kStores & 1);
      } else {
        wait_free();
      }
      const int pixel = tile.pixel + (kTogether ? group * kGroupM : 0);
      WriteLayerTile<typename Config::T>(after, acc, to, written, pixel,
                                         tile.channel, tile.part->pixels,
                                         problem.channels);
    } else {
      wait_free();
      WriteTile<typename Config::T, Config::kLines>(acc, to, written);
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
  const int pixels = min(Config::kM, tile.part->pixels - tile.pixel);
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
template <typename Config, int kParts, typename After>
__device__ __forceinline__ void IssueStores(const ConvProblem<kParts>& problem,
                                            const After& after, uint32_t shared,
                                            ConvBarriers<Config>& barriers) {
  constexpr int kM = Config::kM, kN = Config::kN, kStores = Config::kStores;
  const uint32_t stores = shared + ConvShared<Config>::kStoreOffset;
  auto& [written, free] = barriers.stores;
  int turns = 0;
  // Tiles whose stores would hold up the loads of others.
  int before_last = (problem.tiles - 1 - int(blockIdx.x)) / int(gridDim.x);
  auto residual = [&](int turn) {
    if constexpr (After::kPresent) {
      if (after.residual == nullptr) return;
      // Its buffer may still be on the way out.
      if (turn >= kStores) StoreWaitRead<0>();
      IssueResidual<Config>(problem, after, turn, stores, barriers);
    }
  };
  for (int turn = 0; turn < kStores - 1; ++turn) residual(turn);
  ForTiles<Config>(problem, [&](const ConvTile& tile) {
    const bool paced = before_last-- > 0 && tile.iterations >= kPacedIterations;
    if (tile.iterations > 0) {
      residual(turns + kStores - 1);
      const int buffer = turns % kStores;
      BarrierWait(SharedAddress(&written[buffer]), turns / kStores & 1);
      const uint32_t from = stores + buffer * Config::kTileBytes;
      if constexpr (Config::kLines) {
        StoreLines<kM, kN>(*tile.part, from, tile.pixel, tile.channel);
      } else {
        StoreTile<kM, kN, kParts == 1>(*tile.part, from, kBoxBytes, paced,
                                       tile.pixel, tile.channel,
                                       problem.channels);
      }
      StoreWaitRead<kStores - 1>();
      // What was written kStores - 1 turns before this one has been read.
      if (++turns >= kStores) {
        for (int group = 0; group < kConsumers; ++group) {
          if (Config::kTogether || group == turns % kConsumers) {
            BarrierArrive(SharedAddress(&free[group]));
          }
        }
      }
    } else if constexpr (Config::kZeros) {
      if (tile.part->iterations == 0) {
        StoreTile<kM, kN, kParts == 1>(
            *tile.part, shared + ConvShared<Config>::kZeroOffset, 0, false,
            tile.pixel, tile.channel, problem.channels);
      }
    }
  });
  StoreWaitRead<0>();  // shared memory must outlive the stores that read it
}

template <typename Config, int kParts, typename After>
__global__ void __launch_bounds__(kThreads, 1)
    ConvKernel(const __grid_constant__ ConvProblem<kParts> problem,
               const __grid_constant__ After after) {
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& barriers = *reinterpret_cast<ConvBarriers<Config>*>(
      memory + ConvShared<Config>::kBarrierOffset);
  const uint32_t shared = SharedAddress(memory);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  // The first warp does not wait for the others before it copies.
  if (warp == 0) {
    if (ElectOne()) barriers.InitFirst();
    NamedBarrierArrive(kFirstBarrier, kThreads);
    CopyFirstStages<Config>(problem, shared, barriers);
    NamedBarrier(kRestBarrier, 64);
  } else {
    if (threadIdx.x == 64) {
      PrefetchMap(problem.part[0].input);
      PrefetchMap(problem.weights);
      PrefetchMap(problem.part[0].output);
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
  constexpr bool kTrades =
      After::kPresent || Config::kGroupM * Config::kN > 64 * 128;
  if (warp < kWarpgroup / 32) {
    if constexpr (kTrades) GiveRegisters<kProducerRegisters>();
    if (warp == 0) {
      IssueCopies<Config, Operand::kInput>(problem, shared, barriers.ring);
    } else if (Config::kResident == 0 && warp == 1) {
      IssueCopies<Config, Operand::kWeights>(problem, shared, barriers.ring);
    } else if (threadIdx.x == 64) {
      IssueStores<Config>(problem, after, shared, barriers);
    }
  } else {
    if constexpr (kTrades) TakeRegisters<kConsumerRegisters>();
    Consume<Config>(problem, after, threadIdx.x / kWarpgroup - 1, shared,
                    barriers);
  }
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_CONV_KERNEL_CUH_
