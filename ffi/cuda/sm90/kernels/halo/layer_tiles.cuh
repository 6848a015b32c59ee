// SPDX-License-Identifier: Apache-2.0
// The policies of halo_kernel.cuh for a convolution as it is, and for a layer
// (epilogue.h).
#pragma once

#include "cuda/sm90/kernels/halo/halo_plan.h"
#include "cuda/sm90/kernels/halo/halo_store.cuh"

namespace jax_convbatch::hopper {

// What both share.
struct StoredTiles : PlainHalos, OneOutput {
  using Problem = HaloProblem;
  static constexpr int kMaxHaloPixels = kMaxLayerHaloPixels, kSums = 0;
};

// Of 16-bit types. dgrad, whose filter is not kByRows, has no layer.
struct LayerTiles : StoredTiles {
  // Rounds a warpgroup's sums and writes them to the buffer of the output,
  // where the residual lies.
  template <typename Config>
  static __device__ __forceinline__ void Write(const Problem& problem,
                                               const HaloPlace& place,
                                               float (&acc)[2][Config::kN / 2],
                                               uint32_t buffer, float*) {
    using T = typename Config::T;
    auto round = [](float low, float high) { return Pack<T>(low, high); };
    if constexpr (!Config::kByRows) {
      WritePacked<Config::kN>(acc, buffer, round);
    } else {
      if (problem.channel_scale != nullptr) Scale<T>(problem, place, acc);
      if (problem.has_residual) AddResidual<T, Config::kN>(buffer, acc);
      if (problem.keeps_z) {
        WritePacked<Config::kN>(acc, buffer, round);
        StoreHaloTileAndWait<Config>(problem, place, problem.z, buffer);
      }
      DispatchActivation(problem.activation, [&](auto tag) {
        WritePacked<Config::kN>(acc, buffer, [](float low, float high) {
          return PackActivated<T, decltype(tag)::value>(low, high);
        });
      });
      if (problem.bitmask != nullptr) {
        WriteHaloBitmask<Config>(problem, place, buffer);
      }
    }
  }

 private:
  // Sums that did not begin with the bias.
  template <typename T, int kHalfN>
  static __device__ __forceinline__ void Scale(const Problem& problem,
                                               const HaloPlace& place,
                                               float (&acc)[2][kHalfN]) {
    Epilogue e{};
    e.scale = problem.channel_scale;
    e.bias = problem.bias;
    ScaleAndAdd<T>(e, place.channel, problem.k, acc);
  }

  template <typename T, int kN>
  static __device__ __forceinline__ void AddResidual(uint32_t buffer,
                                                     float (&acc)[2][kN / 2]) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int j = 0; j < kN / 8; j += 2) {
        uint32_t residual[4];
        LoadMatrix4(HaloTileAddress<kN>(buffer, m, j), residual);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 two = Unpack<T>(residual[i]);
          acc[m][4 * j + 2 * i] += two.x;
          acc[m][4 * j + 2 * i + 1] += two.y;
        }
      }
    }
  }

  template <int kN, typename PackPair>
  static __device__ __forceinline__ void WritePacked(
      const float (&acc)[2][kN / 2], uint32_t buffer, PackPair pack) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int j = 0; j < kN / 8; j += 2) {
        const float* const v = &acc[m][4 * j];
        StoreMatrix4(HaloTileAddress<kN>(buffer, m, j), pack(v[0], v[1]),
                     pack(v[2], v[3]), pack(v[4], v[5]), pack(v[6], v[7]));
      }
    }
  }
};

// Of f32: boxes of 32 channels, in lines of 128 bytes.
template <bool kLayer>
struct F32Tiles : StoredTiles {
  template <typename Config>
  static __device__ __forceinline__ void Write(const Problem& problem,
                                               const HaloPlace& place,
                                               float (&acc)[2][Config::kN / 2],
                                               uint32_t buffer, float*) {
    constexpr int kN = Config::kN;
    if constexpr (!kLayer) {
      ForPairs<kN>(acc, buffer,
                   [](uint32_t to, float2& v) { StoreShared2(to, v); });
    } else {
      PreActivate<kN>(problem, place, buffer, acc);
      if (problem.keeps_z) {
        ForPairs<kN>(acc, buffer,
                     [](uint32_t to, float2& v) { StoreShared2(to, v); });
        StoreHaloTileAndWait<Config>(problem, place, problem.z, buffer);
      }
      DispatchActivation(problem.activation, [&](auto tag) {
        constexpr Activation kActivation = decltype(tag)::value;
        ForPairs<kN>(acc, buffer, [](uint32_t to, float2& v) {
          StoreShared2(
              to, {Activate(kActivation, v.x), Activate(kActivation, v.y)});
        });
      });
      if (problem.bitmask != nullptr) {
        WriteHaloBitmask<Config>(problem, place, buffer);
      }
    }
  }

 private:
  // Calls visit(address, pair) for a thread's pairs of columns.
  template <int kN, typename Visit>
  static __device__ __forceinline__ void ForPairs(float (&acc)[2][kN / 2],
                                                  uint32_t buffer,
                                                  Visit visit) {
    const int lane = threadIdx.x % 32;
    const int row = threadIdx.x % kWarpgroup / 32 * 16 + lane / 4;
    // The swizzle moves a line's first pair to bits that are not added to.
    const uint32_t first = HaloF32Pair<kN>(buffer, 0, row, lane % 4 * 2);
#pragma unroll
    for (int j = 0; j < kN / 8; ++j) {
      const uint32_t in_line = first ^ j % 4 << 5;
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float* v = &acc[m][4 * j + 2 * half];
          float2 pair = {v[0], v[1]};
          visit(in_line + ((m * (kN / 32) + j / 4) * 64 + 8 * half) * 128,
                pair);
          v[0] = pair.x, v[1] = pair.y;
        }
      }
    }
  }

  // Where the program has it: the compiler would load all first, for which
  // there are not enough registers.
  static __device__ __forceinline__ float2 LoadPair(const float2* from) {
    float2 v;
    asm volatile("ld.global.nc.v2.f32 {%0, %1}, [%2];"
                 : "=f"(v.x), "=f"(v.y)
                 : "l"(from));
    return v;
  }

  // As PairEpilogue of epilogue_f32.cuh, which adds 0 where there is no
  // residual.
  template <int kN>
  static __device__ __forceinline__ void PreActivate(const Problem& problem,
                                                     const HaloPlace& place,
                                                     uint32_t buffer,
                                                     float (&acc)[2][kN / 2]) {
    const int first = place.channel + threadIdx.x % 4 * 2;
    auto load = [&](const void* from, int j) {
      const int k = min(first + 8 * j, problem.k - 2);  // past it: not stored
      return LoadPair(static_cast<const float2*>(from) + k / 2);
    };
    const float none = problem.has_residual ? -0.0f : 0.0f;  // -0 adds nothing
#pragma unroll
    for (int j = 0; j < kN / 8; ++j) {
      float2 scale = {1, 1}, bias = {0, 0};
      if (problem.channel_scale != nullptr)
        scale = load(problem.channel_scale, j);
      if (problem.bias != nullptr) bias = load(problem.bias, j);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float* v = &acc[i / 2][4 * j + i % 2 * 2];
        v[0] = fmaf(v[0], scale.x, bias.x) + none;
        v[1] = fmaf(v[1], scale.y, bias.y) + none;
      }
    }
    if (problem.has_residual) {
      ForPairs<kN>(acc, buffer, [&](uint32_t at, float2& v) {
        const float2 residual = LoadShared2(at);
        v.x += residual.x;
        v.y += residual.y;
      });
    }
  }
};

}  // namespace jax_convbatch::hopper
