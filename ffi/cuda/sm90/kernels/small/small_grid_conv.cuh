// SPDX-License-Identifier: Apache-2.0
// fprop and dgrad of small f32 images, whole images at a time: TMA brings them
// with the zeros around them, and a warpgroup multiplies them as they lie.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_SMALL_SMALL_GRID_CONV_CUH_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_SMALL_SMALL_GRID_CONV_CUH_

#include "cuda/sm90/kernels/small/small_grid.cuh"

namespace jax_convbatch::hopper {

inline constexpr int kGridThreads = 128, kGridBlocks = 2;

struct SmallGridProblem {
  CUtensorMap in;
  const float* w;
  float* out;
  int N, H, W;
  SmallGrid grid;
  int tiles;
  int parts;  // blocks that share a tile
};

// Of a lane's neighbouring channels.
template <int kEach>
struct LaneScale {
  float scale[kEach], bias[kEach];

  __device__ LaneScale(const Epilogue& e, int channel) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      auto of = [&](const void* from, float none) {
        return from == nullptr
                   ? none
                   : __ldg(static_cast<const float*>(from) + channel + i);
      };
      scale[i] = of(e.scale, 1.0f), bias[i] = of(e.bias, 0.0f);
    }
  }
};

// Stores a lane's channels of a pixel, from element `at` of the result on,
// where it is not negative. All lanes call.
template <int kEach>
__device__ __forceinline__ void StoreLane(float* out, const Epilogue& e,
                                          const LaneScale<kEach>& by,
                                          int64_t at, float (&v)[kEach]) {
#pragma unroll
  for (int i = 0; i < kEach; ++i) v[i] = fmaf(v[i], by.scale[i], by.bias[i]);
  if (at >= 0 && e.residual != nullptr) {
#pragma unroll
    for (int i = 0; i < kEach; i += 4) {
      const float4 add = __ldg(reinterpret_cast<const float4*>(
          static_cast<const float*>(e.residual) + at + i));
      v[i] += add.x, v[i + 1] += add.y, v[i + 2] += add.z, v[i + 3] += add.w;
    }
  }
  if (at >= 0 && e.z != nullptr) StoreFours(static_cast<float*>(e.z) + at, v);
  DispatchActivation(e.activation, [&](auto tag) {
    constexpr Activation kActivation = decltype(tag)::value;
#pragma unroll
    for (int i = 0; i < kEach; ++i) v[i] = Activate(kActivation, v[i]);
  });
  if (at >= 0) StoreFours(out + at, v);
  if (e.bitmask == nullptr) return;
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) bits |= (v[i] > 0) << i;
  if constexpr (kEach == 4) {
    bits |= __shfl_down_sync(~0u, bits, 1) << 4;
    if (threadIdx.x % 2 != 0) return;
  }
  if (at >= 0) e.bitmask[at / 8] = static_cast<uint8_t>(bits);
}

template <int kIn, int kOut, bool kFlipped>
__global__ void __launch_bounds__(kGridThreads, kGridBlocks)
    SmallGridKernel(const __grid_constant__ SmallGridProblem p,
                    const __grid_constant__ Epilogue epilogue) {
  using Filter = GridFilter<kIn, kOut, kFlipped>;
  extern __shared__ __align__(1024) float small_grid_shared[];
  const SmallGrid& grid = p.grid;
  float* const filter = small_grid_shared;
  float* const stages = filter + Filter::kWords;
  const int words = grid.words(kIn);
  auto* const full = reinterpret_cast<uint64_t*>(stages + 2 * words);
  auto* const pixel_of = reinterpret_cast<int16_t*>(full + 2);
  const int step = gridDim.x / p.parts;  // from tile to tile
  const int part = blockIdx.x % p.parts;
  auto fetch = [&](int tile, int stage) {  // by one thread
    if (tile >= p.tiles) return;
    const uint32_t barrier = SharedAddress(&full[stage]);
    BarrierArriveExpect(barrier, grid.box * kIn * 4);
    LoadTile4(SharedAddress(stages + stage * words + grid.first * kIn), p.in,
              barrier, 0, 0, 0, tile * grid.images);
  };
  int tile = blockIdx.x / p.parts;
  if (threadIdx.x == 0) {
    BarrierInit(SharedAddress(&full[0]), 1);
    BarrierInit(SharedAddress(&full[1]), 1);
    FenceBarrierInit();
    fetch(tile, 0);
    fetch(tile + step, 1);
  }
  Filter::template Load<kGridThreads>(p.w, filter);
  ClearBorders<kGridThreads>(grid, kIn, stages);
  ClearBorders<kGridThreads>(grid, kIn, stages + words);
  FillPixels<kGridThreads>(grid, p.H, p.W, pixel_of);
  const LaneScale<Filter::kEach> scale(epilogue, Filter::First());
  FenceAsyncProxy();
  __syncthreads();
  int stage = 0;
  uint32_t round = 0;
  for (; tile < p.tiles; tile += step) {
    const int there = min(grid.images, p.N - tile * grid.images) * p.H * p.W;
    const int64_t first = int64_t{tile} * grid.images * p.H * p.W;
    BarrierWait(SharedAddress(&full[stage]), round);
    if constexpr (kFlipped) {
      // As small_backward.cuh rounds dz.
      auto* const at =
          reinterpret_cast<float4*>(stages + stage * words + grid.first * kIn);
#pragma unroll 4
      for (int i = threadIdx.x; i < grid.box * kIn / 4; i += kGridThreads) {
        at[i] = RoundTf32(at[i]);
      }
      FenceAsyncProxy();
      __syncthreads();
    }
    Filter::ForBlocks(
        grid, SharedAddress(stages + stage * words), SharedAddress(filter), p.W,
        part, p.parts, [&](int place, float (&v)[Filter::kEach]) {
          const int pixel = pixel_of[place];
          const bool is_there = pixel >= 0 && pixel < there;
          const int64_t at =
              is_there ? (first + pixel) * kOut + Filter::First() : -1;
          if constexpr (!kFlipped) {
            StoreLane(p.out, epilogue, scale, at, v);
          } else if (is_there) {
            StoreFours(p.out + at, v);
          }
        });
    __syncthreads();
    if (threadIdx.x == 0) fetch(tile + 2 * step, stage);
    round ^= stage;
    stage ^= 1;
  }
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_SMALL_SMALL_GRID_CONV_CUH_
