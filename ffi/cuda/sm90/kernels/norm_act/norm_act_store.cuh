// SPDX-License-Identifier: Apache-2.0
// The way out: a tile's sums with residual, rounded, to shared memory, and the
// sums of what they were rounded to.
#pragma once

#include "cuda/sm90/epilogue/epilogue.cuh"
#include "cuda/sm90/kernels/halo/halo_store.cuh"
#include "cuda/sm90/kernels/norm_act/norm_act_problem.h"

namespace jax_convbatch::hopper {

// Calls f(ActivationTag<a>) for those that norm_act.h says dgrad has.
template <typename F>
__device__ __forceinline__ void DispatchGradient(Activation a, F&& f) {
  switch (a) {
    case Activation::kRelu:
      return f(ActivationTag<Activation::kRelu>());
    case Activation::kGelu:
      return f(ActivationTag<Activation::kGelu>());
    case Activation::kSilu:
      return f(ActivationTag<Activation::kSilu>());
    default:
      return f(ActivationTag<Activation::kIdentity>());
  }
}

// Eight numbers of each lane, added over the lanes of the same lane % 4: number
// lane / 4.
__device__ __forceinline__ float AddOfEight(const float (&v)[8]) {
  const int lane = threadIdx.x % 32;
  float four[4], two[2];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool high = lane & 16;
    four[i] = (high ? v[i + 4] : v[i]) +
              __shfl_xor_sync(~0u, high ? v[i] : v[i + 4], 16);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const bool high = lane & 8;
    two[i] = (high ? four[i + 2] : four[i]) +
             __shfl_xor_sync(~0u, high ? four[i] : four[i + 2], 8);
  }
  const bool high = lane & 4;
  return (high ? two[1] : two[0]) +
         __shfl_xor_sync(~0u, high ? two[0] : two[1], 4);
}

// Whether a thread's two rows of a block are there.
struct RowsInside {
  bool inside[2];

  __device__ __forceinline__ RowsInside(const HaloProblem& problem,
                                        const HaloBlock& block) {
    const bool in_row = problem.tile == HaloTile::kRow;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int pixel =
          threadIdx.x % kWarpgroup / 32 * 16 + half * 8 + threadIdx.x % 32 / 4;
      inside[half] = block.slice < problem.n &&
                     block.row + (in_row ? 0 : pixel / 8) < problem.p &&
                     block.col + (in_row ? pixel : pixel % 8) < problem.q;
    }
  }
};

// A thread's sums over its rows of four of 16 columns, and of what they are
// multiplied by. Word i of four is that of row i % 2, columns from i / 2 * 8
// on.
struct ColumnSums {
  float eight[8] = {};

  __device__ __forceinline__ void Add(int i, float2 two, float2 products) {
    float* const of = &eight[i / 2 * 2];
    of[0] += two.x, of[1] += two.y;
    of[4] += products.x, of[5] += products.y;
  }

  // Those of a warp, to `sums`: [block][warp][2][kN], columns from 8 j on.
  template <int kN>
  __device__ __forceinline__ void Store(float* sums, int m, int j) const {
    const int lane = threadIdx.x % 32, number = lane / 4;
    const int warp = threadIdx.x % kWarpgroup / 32;
    const int column = 8 * (j + number % 4 / 2) + lane % 4 * 2 + number % 2;
    sums[((m * 4 + warp) * 2 + number / 4) * kN + column] = AddOfEight(eight);
  }
};

// Rounds a warpgroup's sums and writes them to the buffer of the output, where
// the residual lies; and to `sums` those of each warp's pixels and of their
// squares.
template <typename T, int kN>
__device__ __forceinline__ void WriteNormActTile(const NormActProblem& problem,
                                                 const HaloPlace& place,
                                                 const float (&acc)[2][kN / 2],
                                                 uint32_t buffer, float* sums) {
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    const RowsInside rows(problem, BlockOf(problem, place.pixels, m));
#pragma unroll
    for (int j = 0; j < kN / 8; j += 2) {
      const uint32_t address = HaloTileAddress<kN>(buffer, m, j);
      uint32_t residual[4], v[4];
      if (problem.has_residual) LoadMatrix4(address, residual);
      ColumnSums of_columns;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float2 two = {acc[m][4 * j + 2 * i], acc[m][4 * j + 2 * i + 1]};
        if (problem.has_residual) {
          const float2 more = Unpack<T>(residual[i]);
          two.x += more.x;
          two.y += more.y;
        }
        v[i] = Pack<T>(two.x, two.y);
        const float2 rounded = Unpack<T>(rows.inside[i % 2] ? v[i] : 0);
        of_columns.Add(i, rounded,
                       {rounded.x * rounded.x, rounded.y * rounded.y});
      }
      StoreMatrix4(address, v[0], v[1], v[2], v[3]);
      if (problem.partials != nullptr) of_columns.Store<kN>(sums, m, j);
    }
  }
}

// Whether an activation's derivative follows from z, or from what it gives.
template <Activation kActivation>
inline constexpr bool kFromZ = SavesInput(kActivation);

// Of dgrad: acc times the activation's derivative goes to `gradients`, the
// activated x to the buffer where x lies, and to `sums` the gradients' and
// those of gradients times x.
template <typename T, int kN>
__device__ __forceinline__ void WriteGradientTile(const NormActProblem& problem,
                                                  const HaloPlace& place,
                                                  const float (&acc)[2][kN / 2],
                                                  uint32_t buffer,
                                                  uint32_t gradients,
                                                  float* sums) {
  DispatchGradient(problem.activation, [&](auto tag) {
    constexpr Activation kActivation = decltype(tag)::value;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const HaloBlock block = BlockOf(problem, place.pixels, m);
      const RowsInside rows(problem, block);
      const int64_t row =
          int64_t{min(block.slice, problem.n - 1)} * problem.factor_step;
#pragma unroll
      for (int j = 0; j < kN / 8; j += 2) {
        const uint32_t address = HaloTileAddress<kN>(buffer, m, j);
        uint32_t x[4], h[4], g[4];
        LoadMatrix4(address, x);
        ColumnSums of_columns;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int64_t column = row + min(place.channel + 8 * (j + i / 2) +
                                               int(threadIdx.x % 4) * 2,
                                           problem.k - 2);
          const float2 scale =
              __ldg(reinterpret_cast<const float2*>(problem.scale + column));
          const float2 shift =
              __ldg(reinterpret_cast<const float2*>(problem.shift + column));
          const float2 of_x = Unpack<T>(x[i]);
          const float z[2] = {fmaf(of_x.x, scale.x, shift.x),
                              fmaf(of_x.y, scale.y, shift.y)};
          float a[2], dz[2];
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            a[e] = Activate(kActivation, z[e]);
            dz[e] = ActivationGrad(
                kActivation, kFromZ<kActivation> ? z[e] : a[e],
                rows.inside[i % 2] ? acc[m][4 * j + 2 * i + e] : 0.0f);
          }
          h[i] = Pack<T>(a[0], a[1]);
          g[i] = Pack<T>(dz[0], dz[1]);
          of_columns.Add(i, {dz[0], dz[1]}, {dz[0] * of_x.x, dz[1] * of_x.y});
        }
        StoreMatrix4(address, h[0], h[1], h[2], h[3]);
        StoreMatrix4(HaloTileAddress<kN>(gradients, m, j), g[0], g[1], g[2],
                     g[3]);
        of_columns.Store<kN>(sums, m, j);
      }
    }
  });
}

// What the warps wrote, added in their order: by unit.
template <int kN>
__device__ __forceinline__ void StoreTilePartials(const NormActProblem& problem,
                                                  const HaloPlace& place,
                                                  const float* sums) {
  if (problem.partials == nullptr) return;
  const int chunks = problem.units_w * problem.units_h;
  for (int t = threadIdx.x % kWarpgroup; t < 2 * kN; t += kWarpgroup) {
    const int which = t / kN, column = t - which * kN;
    if (place.channel + column >= problem.k) continue;
    float of_block[2] = {};
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int warp = 0; warp < 4; ++warp) {
        of_block[m] += sums[((m * 4 + warp) * 2 + which) * kN + column];
      }
    }
    auto store = [&](int m, float sum) {
      const HaloBlock block = BlockOf(problem, place.pixels, m);
      if (block.slice >= problem.n) return;
      const int64_t chunk = int64_t{block.slice} * chunks + block.chunk;
      problem
          .partials[(2 * chunk + which) * problem.k + place.channel + column] =
          sum;
    };
    if (problem.tile == HaloTile::kSquares) {
      store(0, of_block[0]);
      store(1, of_block[1]);
    } else {
      store(0, of_block[0] + of_block[1]);
    }
  }
}

}  // namespace jax_convbatch::hopper
