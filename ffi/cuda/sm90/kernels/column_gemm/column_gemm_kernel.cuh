// SPDX-License-Identifier: Apache-2.0
// The product of columns and a transposed filter, in the way of
// conv_tf32_kernel.cuh. The blocks of a cluster have tiles of the same rows:
// each copies a part of these to all, since what limits the product is what the
// second-level cache delivers. The product begins with the last rows, which
// that cache still has.
#pragma once

#include "cuda/common/dependent_launch.cuh"
#include "cuda/sm90/kernels/conv/conv_tf32_kernel.cuh"

namespace jax_convbatch::hopper {

struct ColumnGemmProblem {
  CUtensorMap columns, filter;  // [rows, depth], [channels, depth]
  ConvSubproblem sub;           // of it the output
  ChannelBias epilogue;
  int channels;
  Divisor n_tiles;  // along the channels, fastest; a multiple of the cluster
  int tiles;
  int stages;  // of a tile
};

template <int kM, int kN, int kStages, int kCluster_>
struct ColumnGemmConfig : Tf32Config<kM, kN, kStages, Contiguous::kReduction> {
  static constexpr int kCluster = kCluster_;
  static constexpr int kBoxRows = kM / kCluster;  // that a block copies
};

struct ColumnGemmTile {
  int row, channel;
};

template <typename Config>
__device__ __forceinline__ ColumnGemmTile
ColumnGemmTileAt(const ColumnGemmProblem& problem, int tile) {
  const int back = problem.tiles - 1 - tile;
  const int group = back / problem.n_tiles;
  return {group * Config::kM, (back - group * problem.n_tiles) * Config::kN};
}

template <typename Config, Operand kOperand>
__device__ __forceinline__ void IssueColumnGemmCopies(
    const ColumnGemmProblem& problem, uint32_t ring,
    RingBarriers<Config::kStages>& barriers) {
  constexpr int kCluster = Config::kCluster;
  const int share = blockIdx.x % kCluster * Config::kBoxRows;
  WaitForPrimary();
  RingPosition<Config::kStages> at;
  for (int t = blockIdx.x; t < problem.tiles; t += gridDim.x) {
    const ColumnGemmTile tile = ColumnGemmTileAt<Config>(problem, t);
    for (int i = 0; i < problem.stages; ++i) {
      const uint32_t full = SharedAddress(&barriers.full[at.stage]);
      const uint32_t input = ring + at.stage * Config::kStageBytes;
      const int c = i * kTf32Block;
      BarrierWait(SharedAddress(&barriers.empty[at.stage]), at.round ^ 1);
      if constexpr (kOperand == Operand::kWeights) {
        BarrierArriveExpect(full, Config::kTapBytes);
        LoadTile2(input + Config::kInputBytes, problem.filter, full, c,
                  tile.channel);
      } else {
        BarrierArriveExpect(full, Config::kInputBytes);
        if constexpr (kCluster == 1) {
          LoadTile2(input, problem.columns, full, c, tile.row);
        } else {
          MulticastTile2(input + share * 128, problem.columns, full, c,
                         tile.row + share, (1 << kCluster) - 1);
        }
      }
      at.Advance();
    }
  }
}

template <typename Config>
__device__ __forceinline__ void MultiplyColumnTiles(
    const ColumnGemmProblem& problem, int group, uint32_t ring,
    RingBarriers<Config::kStages>& barriers) {
  Tf32Store<Config, Output::kMatrix> out(
      group, ring + Config::kRingBytes + group * Config::kStoreBytes);
  // To all blocks that copy into this one's stages.
  const int lane = threadIdx.x % 32;
  auto release = [lane](uint32_t empty) {
    if constexpr (Config::kCluster == 1) {
      if (lane == 0) BarrierArrive(empty);
    } else {
      if (lane < Config::kCluster) BarrierArriveAt(empty, lane);
    }
  };
  RingPosition<Config::kStages> at;
  int turn = 0;
  for (int t = blockIdx.x; t < problem.tiles; t += gridDim.x, ++turn) {
    if (turn % kConsumers != group) {
      at.Skip(problem.stages);
      continue;
    }
    // As in conv_kernel.cuh.
    if (turn > 0) NamedBarrier(kTurnBarrier + group, 2 * kWarpgroup);
    float acc[Config::kBlocks][Config::kM / 2];
    MultiplyStages<float, Contiguous::kReduction, Contiguous::kReduction>(
        acc, problem.stages, ring + Config::kInputBytes, ring,
        Config::kStageBytes, barriers, at, Nothing(), release);
    if (t + gridDim.x < problem.tiles) {
      NamedBarrierArrive(kTurnBarrier + 1 - group, 2 * kWarpgroup);
    }
    const ColumnGemmTile tile = ColumnGemmTileAt<Config>(problem, t);
    out.Store(problem.epilogue, acc, problem.sub, tile.row, tile.channel,
              problem.channels);
  }
  out.Finish();
}

// May start before what fills the columns has ended.
template <typename Config>
__global__ void __launch_bounds__(kThreads, 1)
    ColumnGemmKernel(const __grid_constant__ ColumnGemmProblem problem) {
  extern __shared__ uint8_t shared[];
  __shared__ RingBarriers<Config::kStages> barriers;
  const uint32_t ring = (SharedAddress(shared) + 1023) & ~1023u;
  if (threadIdx.x == 0) {
    barriers.Init(2, Config::kCluster * kWarpgroup / 32);
  }
  if constexpr (Config::kCluster == 1) {
    __syncthreads();
  } else {
    ClusterBarrier();
  }

  const int warpgroup = threadIdx.x / kWarpgroup;
  if (warpgroup == 0) {
    GiveRegisters<kProducerRegisters>();
    if (threadIdx.x == 0) {
      IssueColumnGemmCopies<Config, Operand::kInput>(problem, ring, barriers);
    } else if (threadIdx.x == 32) {
      IssueColumnGemmCopies<Config, Operand::kWeights>(problem, ring, barriers);
    }
  } else {
    TakeRegisters<kConsumerRegisters>();
    MultiplyColumnTiles<Config>(problem, warpgroup - 1, ring, barriers);
  }
  if constexpr (Config::kCluster > 1) {
    // No block ends while another may arrive at its barriers.
    ClusterArrive();
    ClusterWait();
  }
}

}  // namespace jax_convbatch::hopper
