// SPDX-License-Identifier: Apache-2.0
// The way out, what all policies share: how a tile lies in shared memory, and
// copies of it and of a residual.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_HALO_HALO_STORE_CUH_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_HALO_HALO_STORE_CUH_

#include "cuda/sm90/arch/registers.cuh"
#include "cuda/sm90/arch/tensor_copies.cuh"
#include "cuda/sm90/kernels/conv/residue_n_tiles.cuh"
#include "cuda/sm90/kernels/halo/halo_config.cuh"

namespace jax_convbatch::hopper {

// Where a lane keeps 8 of its row's columns, and 8 more of another's: of block
// m, columns from 8 j on.
template <int kN>
__device__ __forceinline__ uint32_t HaloTileAddress(uint32_t buffer, int m,
                                                    int j) {
  const int lane = threadIdx.x % 32;
  const int row = threadIdx.x % kWarpgroup / 32 * 16 + lane % 16;
  if constexpr (kIsResidueN<kN>) {
    return buffer + ResidueNTileOffset<kN / 2>(m, row, j + lane / 16);
  } else {
    const int line = (m * (kN / 64) + j / 8) * 64 + row;
    return buffer + line * 128 + ((j % 8 + lane / 16 ^ line % 8) << 4);
  }
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

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_HALO_HALO_STORE_CUH_
