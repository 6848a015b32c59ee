// fprop and dgrad: one persistent, warp-specialised implicit GEMM.
//
// Two threads of the first warpgroup issue the copies: activations by im2col
// boxes of kM pixels x 64 channels, weights by tiled boxes, read as they lie in
// memory. Two warpgroups multiply, each a tile of its own, and write their
// results through shared memory with tensor stores: while one multiplies, the
// other writes.
//
// The reduction is never split: every tile shape adds in the same order, so
// that results do not depend on the tile, nor on the batch that led to its
// choice.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_CONV_KERNEL_CUH_
#define JAX_CONVBATCH_CUDA_HOPPER_CONV_KERNEL_CUH_

#include "cuda/hopper/conv_problem.h"
#include "cuda/hopper/pipeline.cuh"
#include "cuda/hopper/store_tile.cuh"

namespace jax_convbatch::hopper {

// kWeights: kRows where output channels are contiguous (fprop), kReduction
// where input channels are (dgrad).
template <typename T_, int kM_, int kN_, int kStages_, Contiguous kWeights_>
struct ConvConfig {
  using T = T_;
  static constexpr int kM = kM_, kN = kN_, kStages = kStages_;
  static constexpr Contiguous kWeights = kWeights_;

  static constexpr int kInputBytes = kM * 128;
  static constexpr int kStageBytes = kInputBytes + kN * 128;
  static constexpr int kRingBytes = kStages * kStageBytes;
  static constexpr int kStoreBytes = kConsumers * kStoreBuffers * kBoxBytes;
  // 1024 for alignment: a swizzled box starts at a multiple of it.
  static constexpr int kSharedBytes = kRingBytes + kStoreBytes + 1024;
};

// Named barriers: 1 and 2 are TileStore's, these order the warpgroups' turns.
inline constexpr int kTurnBarrier = 3;

// A tile of the launch: part, first pixel, first channel, and how many stages
// it takes. It may lie past the part's end: then it is nothing.
struct ConvTile {
  const ConvPart* part;
  int pixel, channel, iterations;
};

template <typename Config, int kParts>
__device__ __forceinline__ ConvTile TileAt(const ConvProblem<kParts>& problem,
                                           int tile) {
  const int row = tile / problem.n_tiles;
  const int channel = (tile - row * problem.n_tiles) * Config::kN;
  if constexpr (kParts == 1) {
    const ConvPart* part = &problem.part[0];
    return {part, row * Config::kM, channel, part->iterations};
  }
  // Tiles of the parts take turns, so that what lies side by side in the output
  // is written together; rotated, so that a block gets tiles of all parts.
  const int group = row / problem.parts;
  const int index = (row + group) % problem.parts;
  const ConvPart* part = &problem.part[index];
  const int pixel = group * Config::kM;
  return {part, pixel, channel, pixel < part->pixels ? part->iterations : 0};
}

// One thread issues the input's copies, one in another warp the weights': it
// helps small tiles, which are bound by how fast copies are issued.
enum class Operand { kInput, kWeights };

template <typename Config, Operand kOperand, int kParts>
__device__ __forceinline__ void IssueCopies(
    const ConvProblem<kParts>& problem, uint32_t ring,
    RingBarriers<Config::kStages>& barriers) {
  RingPosition<Config::kStages> at;
  for (int t = blockIdx.x; t < problem.tiles; t += gridDim.x) {
    const ConvTile tile = TileAt<Config>(problem, t);
    const ConvPart& part = *tile.part;
    const int row = tile.pixel / part.cols;
    const int image = row / part.rows;
    const int w =
        part.input_w + (tile.pixel - row * part.cols) * part.input_step_w;
    const int h = part.input_h + (row - image * part.rows) * part.input_step_h;

    int r = 0, s = 0, block = 0;
    for (int i = 0; i < tile.iterations; ++i) {
      const uint32_t full = SharedAddress(&barriers.full[at.stage]);
      const uint32_t input = ring + at.stage * Config::kStageBytes;
      const uint32_t weights = input + Config::kInputBytes;
      BarrierWait(SharedAddress(&barriers.empty[at.stage]), at.round ^ 1);
      if constexpr (kOperand == Operand::kInput) {
        BarrierArriveExpect(full, Config::kInputBytes);
        LoadIm2col(input, part.input, full, block * 64, w, h, image,
                   s * part.taps_w.offset_step, r * part.taps_h.offset_step);
      } else {
        BarrierArriveExpect(full, Config::kStageBytes - Config::kInputBytes);
        const int filter_tap = (part.taps_h.tap + r * part.taps_h.tap_step) *
                                   problem.filter_width +
                               part.taps_w.tap + s * part.taps_w.tap_step;
        if constexpr (Config::kWeights == Contiguous::kRows) {
#pragma unroll
          for (int n = 0; n < Config::kN; n += 64) {
            LoadTile3(weights + n * 128, problem.weights, full,
                      tile.channel + n, block * 64, filter_tap);
          }
        } else {
          LoadTile3(weights, problem.weights, full, block * 64, tile.channel,
                    filter_tap);
        }
      }
      at.Advance();
      if (++block == problem.channel_blocks) {
        block = 0;
        if (++s == part.taps_w.count) {
          s = 0;
          ++r;
        }
      }
    }
  }
}

template <typename Config, int kParts>
__device__ __forceinline__ void Consume(
    const ConvProblem<kParts>& problem, int group, uint32_t ring,
    uint32_t store, RingBarriers<Config::kStages>& barriers) {
  const uint32_t weights = ring + Config::kInputBytes;
  TileStore<typename Config::T, kParts == 1> out(
      group, store + group * kStoreBuffers * kBoxBytes);
  RingPosition<Config::kStages> at;
  int turn = 0;
  for (int t = blockIdx.x; t < problem.tiles; t += gridDim.x, ++turn) {
    const ConvTile tile = TileAt<Config>(problem, t);
    if (turn % kConsumers != group) {
      at.Skip(tile.iterations);
      continue;
    }
    // The parity of a stage tells its next round only from this one, so a
    // warpgroup waits until the other has the stages before.
    if (turn > 0) NamedBarrier(kTurnBarrier + group, 2 * kWarpgroup);
    float acc[Config::kM / 64][Config::kN / 2];
    MultiplyStages<typename Config::T, Contiguous::kReduction,
                   Config::kWeights>(acc, tile.iterations, ring, weights,
                                     Config::kStageBytes, barriers, at);
    if (t + gridDim.x < problem.tiles) {
      NamedBarrierArrive(kTurnBarrier + 1 - group, 2 * kWarpgroup);
    }
    out.Store(acc, *tile.part, tile.pixel, tile.channel, problem.channels);
  }
  out.Finish();
}

template <typename Config, int kParts>
__global__ void __launch_bounds__(kThreads, 1)
    ConvKernel(const __grid_constant__ ConvProblem<kParts> problem) {
  extern __shared__ uint8_t shared[];
  __shared__ RingBarriers<Config::kStages> barriers;
  const uint32_t ring = (SharedAddress(shared) + 1023) & ~1023u;
  if (threadIdx.x == 0) barriers.Init(2, kWarpgroup / 32);
  __syncthreads();

  const int warpgroup = threadIdx.x / kWarpgroup;
  if (warpgroup == 0) {
    GiveRegisters<kProducerRegisters>();
    if (threadIdx.x == 0) {
      IssueCopies<Config, Operand::kInput>(problem, ring, barriers);
    } else if (threadIdx.x == 32) {
      IssueCopies<Config, Operand::kWeights>(problem, ring, barriers);
    }
  } else {
    TakeRegisters<kConsumerRegisters>();
    Consume<Config>(problem, warpgroup - 1, ring, ring + Config::kRingBytes,
                    barriers);
  }
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_CONV_KERNEL_CUH_
