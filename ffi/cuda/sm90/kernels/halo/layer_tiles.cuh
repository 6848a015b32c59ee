// SPDX-License-Identifier: Apache-2.0
// The policies of halo_kernel.cuh for a convolution as it is, and for a layer:
// bias, residual, activation.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_HALO_LAYER_TILES_CUH_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_HALO_LAYER_TILES_CUH_

#include "cuda/sm90/epilogue/epilogue.cuh"
#include "cuda/sm90/kernels/halo/halo_plan.h"
#include "cuda/sm90/kernels/halo/halo_store.cuh"

namespace jax_convbatch::hopper {

// What both share.
struct StoredTiles : PlainHalos, OneOutput {
  using Problem = HaloProblem;
  static constexpr int kMaxHaloPixels = kMaxLayerHaloPixels, kSums = 0;
};

// Of 16-bit types.
struct LayerTiles : StoredTiles {
  // Rounds a warpgroup's sums and writes them to the buffer of the output,
  // where the residual lies.
  template <typename Config>
  static __device__ __forceinline__ void Write(const Problem& problem,
                                               const HaloPlace&,
                                               float (&acc)[2][Config::kN / 2],
                                               uint32_t buffer, float*) {
    using T = typename Config::T;
    constexpr int kN = Config::kN;
    auto write = [&](auto pack) {
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int j = 0; j < kN / 8; j += 2) {
          const uint32_t address = HaloTileAddress<kN>(buffer, m, j);
          float* const v = &acc[m][4 * j];
          if (problem.has_residual) {
            uint32_t residual[4];
            LoadMatrix4(address, residual);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const float2 two = Unpack<T>(residual[i]);
              v[2 * i] += two.x;
              v[2 * i + 1] += two.y;
            }
          }
          StoreMatrix4(address, pack(v[0], v[1]), pack(v[2], v[3]),
                       pack(v[4], v[5]), pack(v[6], v[7]));
        }
      }
    };
    if constexpr (!Config::kByRows) {
      write([](float low, float high) { return Pack<T>(low, high); });
    } else {
      DispatchActivation(problem.activation, [&](auto tag) {
        write([](float low, float high) {
          return PackActivated<T, decltype(tag)::value>(low, high);
        });
      });
    }
  }
};

// Of f32, without an epilogue: boxes of 32 channels, in lines of 128 bytes.
struct F32Tiles : StoredTiles {
  template <typename Config>
  static __device__ __forceinline__ void Write(
      const Problem&, const HaloPlace&, const float (&acc)[2][Config::kN / 2],
      uint32_t buffer, float*) {
    const int lane = threadIdx.x % 32;
    const int first = threadIdx.x % kWarpgroup / 32 * 16 + lane / 4;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int j = 0; j < Config::kN / 8; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = first + 8 * half;
          const int line = (m * (Config::kN / 32) + j / 4) * 64 + row;
          const int chunk = j % 4 * 2 + lane % 4 / 2;
          const float* v = &acc[m][4 * j + 2 * half];
          StoreShared2(
              buffer + line * 128 + ((chunk ^ row % 8) << 4) + lane % 2 * 8,
              {v[0], v[1]});
        }
      }
    }
  }
};

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_HALO_LAYER_TILES_CUH_
