// SPDX-License-Identifier: Apache-2.0
// The way out, what all policies share: how a tile lies in shared memory, and
// copies of it and of a residual.
#pragma once

#include "cuda/sm90/arch/registers.cuh"
#include "cuda/sm90/arch/tensor_copies.cuh"
#include "cuda/sm90/epilogue/epilogue.cuh"
#include "cuda/sm90/kernels/conv/residue_n_tiles.cuh"
#include "cuda/sm90/kernels/halo/halo_config.cuh"

namespace jax_convbatch::hopper {

// The hardware barrier of a warpgroup that multiplies is this and its number.
inline constexpr int kHaloBarrier = 1;

// Where a row of block m of a tile of 16-bit values has its channels from 8
// `eight` on.
template <int kN>
__device__ __forceinline__ uint32_t HaloTileEight(uint32_t buffer, int m,
                                                  int row, int eight) {
  if constexpr (kIsResidueN<kN>) {
    return buffer + ResidueNTileOffset<kN / 2>(m, row, eight);
  } else {
    const int line = (m * (kN / 64) + eight / 8) * 64 + row;
    return buffer + line * 128 + ((eight % 8 ^ row % 8) << 4);
  }
}

// Where a lane keeps 8 of its row's columns, and 8 more of another's: of block
// m, columns from 8 j on.
template <int kN>
__device__ __forceinline__ uint32_t HaloTileAddress(uint32_t buffer, int m,
                                                    int j) {
  const int lane = threadIdx.x % 32;
  return HaloTileEight<kN>(
      buffer, m, threadIdx.x % kWarpgroup / 32 * 16 + lane % 16, j + lane / 16);
}

// A pair of neighbouring columns of a tile of f32: of block m, in lines of 32
// channels.
template <int kN>
__device__ __forceinline__ uint32_t HaloF32Pair(uint32_t buffer, int m, int row,
                                                int column) {
  const int line = (m * (kN / 32) + column / 32) * 64 + row;
  return buffer + line * 128 + ((column % 32 / 4 ^ row % 8) << 4) +
         column % 4 * 4;
}

// Calls visit(block, box, channel) for the boxes of a tile: of 64 pixels, where
// they lie in shared memory, and channels from `channel` on.
template <typename Config, typename Visit>
__device__ __forceinline__ void ForHaloBoxes(const HaloProblem& problem,
                                             const HaloPlace& place,
                                             Visit visit) {
  constexpr int kN = Config::kN;
  constexpr int kBox = Config::kTf32 ? 32 : kBoxChannels<kN>;
  constexpr int kPixels = 64 * int{sizeof(typename Config::T)};
  for (int m = 0; m < 2; ++m) {
    const HaloBlock block = BlockOf(problem, place.pixels, m);
    for (int n = 0; n < kN; n += kBox) {
      visit(block, (m * kN + n) * kPixels, place.channel + n);
    }
  }
}

// By one thread.
template <typename Config>
__device__ __forceinline__ void CopyHaloResidual(const HaloProblem& problem,
                                                 const HaloPlace& place,
                                                 uint32_t buffer,
                                                 uint32_t barrier) {
  BarrierArriveExpect(barrier, Config::kTileBytes);
  ForHaloBoxes<Config>(problem, place,
                       [&](const HaloBlock& block, int box, int channel) {
                         LoadTile4(buffer + box, problem.residual, barrier,
                                   channel, block.col, block.row, block.slice);
                       });
}

// By one thread.
template <typename Config>
__device__ __forceinline__ void StoreHaloTile(const HaloProblem& problem,
                                              const HaloPlace& place,
                                              const CUtensorMap& output,
                                              uint32_t buffer) {
  ForHaloBoxes<Config>(problem, place,
                       [&](const HaloBlock& block, int box, int channel) {
                         if (!IsInside(problem, block) || channel >= problem.k)
                           return;
                         StoreTile4(output, buffer + box, channel, block.col,
                                    block.row, block.slice);
                       });
  StoreCommit();
}

// Stores what a warpgroup has written to the buffer, which may be written again
// then.
template <typename Config>
__device__ __forceinline__ void StoreHaloTileAndWait(const HaloProblem& problem,
                                                     const HaloPlace& place,
                                                     const CUtensorMap& output,
                                                     uint32_t buffer) {
  const int barrier = kHaloBarrier + threadIdx.x / kWarpgroup;
  FenceAsyncProxy();
  NamedBarrier(barrier, kWarpgroup);
  if (threadIdx.x % kWarpgroup == 0) {
    StoreHaloTile<Config>(problem, place, output, buffer);
    StoreWaitRead<0>();
  }
  NamedBarrier(barrier, kWarpgroup);
}

// Which of eight values in the buffer are positive, the first in the lowest
// bit.
template <typename Config>
__device__ __forceinline__ uint32_t HaloBitsOf(uint32_t buffer, int m, int row,
                                               int eight) {
  constexpr int kN = Config::kN;
  if constexpr (Config::kTf32) {
    uint32_t bits = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float4 v =
          LoadShared4(HaloF32Pair<kN>(buffer, m, row, 8 * eight + 4 * half));
      bits |= ((v.x > 0) | (v.y > 0) << 1 | (v.z > 0) << 2 | (v.w > 0) << 3)
              << 4 * half;
    }
    return bits;
  } else {
    return BitmaskOf<typename Config::T>(
        LoadShared4(HaloTileEight<kN>(buffer, m, row, eight)));
  }
}

// The ReLU bitmask of a tile in the buffer, each warp of its own rows.
template <typename Config>
__device__ __forceinline__ void WriteHaloBitmask(const HaloProblem& problem,
                                                 const HaloPlace& place,
                                                 uint32_t buffer) {
  __syncwarp();
  const int lane = threadIdx.x % 32, m = lane / 16;
  const int row = threadIdx.x % kWarpgroup / 32 * 16 + lane % 16;
  const HaloBlock block = BlockOf(problem, place.pixels, m);
  const bool in_row = problem.tile == HaloTile::kRow;
  const int h = block.row + (in_row ? 0 : row / 8);
  const int w = block.col + (in_row ? row : row % 8);
  if (block.slice >= problem.slices || h >= problem.p || w >= problem.q) return;
  const int64_t pixel = (int64_t{block.slice} * problem.p + h) * problem.q + w;
  uint8_t* const to =
      problem.bitmask + pixel * (problem.k / 8) + place.channel / 8;
  const bool whole = problem.k % 32 == 0;
#pragma unroll
  for (int eight = 0; eight < Config::kN / 8; eight += 4) {
    const int left = problem.k - place.channel - 8 * eight;
    if (left <= 0) break;
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      word |= HaloBitsOf<Config>(buffer, m, row, eight + i) << 8 * i;
    }
    if (whole) {
      *reinterpret_cast<uint32_t*>(to + eight) = word;
    } else {
      for (int i = 0; i < 4 && 8 * i < left; ++i) {
        to[eight + i] = static_cast<uint8_t>(word >> 8 * i);
      }
    }
  }
}

// Of a policy that multiplies x as it is.
struct PlainHalos {
  static constexpr int kActivators = 0, kFactorBytes = 0;

  static __device__ int FactorBytes(const HaloProblem&, int) { return 0; }
  static __device__ void CopyFactors(const HaloProblem&, uint32_t, uint32_t,
                                     int, int, int) {}
};

// Of one that stores its tile and nothing else.
struct OneOutput {
  static constexpr int kOutputs = 1;

  // By one thread.
  template <typename Config>
  static __device__ __forceinline__ void Store(const HaloProblem& problem,
                                               const HaloPlace& place,
                                               uint32_t buffer) {
    StoreHaloTile<Config>(problem, place, problem.output, buffer);
  }
};

}  // namespace jax_convbatch::hopper
