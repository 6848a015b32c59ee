// fprop and dgrad of small f32 images, whole images at a time: small_tf32.cuh
// where small_grid.h's grids suit, with the same bits. The copy engine brings
// the next tile while this one is multiplied.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_SMALL_GRID_CONV_CUH_
#define JAX_CONVBATCH_CUDA_HOPPER_SMALL_GRID_CONV_CUH_

#include "cuda/hopper/small_grid.cuh"

namespace jax_convbatch::hopper {

inline constexpr int kGridThreads = 256;

struct SmallGridProblem {
  const float *in, *w;
  float* out;
  int N, H, W;
  SmallGrid grid;
  int tiles;
};

template <int kIn, int kOut, bool kFlipped>
__global__ void __launch_bounds__(kGridThreads, 3)
    SmallGridKernel(const __grid_constant__ SmallGridProblem p,
                    const __grid_constant__ Epilogue epilogue) {
  extern __shared__ __align__(128) float small_grid_shared[];
  __shared__ uint64_t full;
  const SmallGrid& grid = p.grid;
  float* const filter = small_grid_shared;
  float* const places = filter + 9 * kIn * kOut;
  float* const incoming = places + grid.places * kIn;
  auto* const place_of =
      reinterpret_cast<int16_t*>(incoming + grid.pixels * kIn);
  int16_t* const pixel_of = place_of + grid.pixels;
  const uint32_t barrier = SharedAddress(&full);
  auto pixels_of = [&](int tile) {
    return min(grid.images, p.N - tile * grid.images) * p.H * p.W;
  };
  auto first_of = [&](int tile) {
    return int64_t{tile} * grid.images * p.H * p.W;
  };
  auto fetch = [&](int tile) {  // by one thread
    const int bytes = pixels_of(tile) * kIn * 4;
    BarrierArriveExpect(barrier, bytes);
    LoadBytes(SharedAddress(incoming), p.in + first_of(tile) * kIn, barrier,
              bytes);
  };
  if (threadIdx.x == 0) {
    BarrierInit(barrier, 1);
    FenceBarrierInit();
    fetch(blockIdx.x);
  }
  LoadGridFilter<kIn, kOut, kGridThreads, kFlipped>(p.w, filter);
  for (int i = threadIdx.x; i < grid.places * (kIn / 4); i += kGridThreads) {
    reinterpret_cast<float4*>(places)[i] = make_float4(0, 0, 0, 0);
  }
  FillTables<kGridThreads>(grid, p.H, p.W, place_of, pixel_of);
  __syncthreads();

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint32_t round = 0;
  for (int tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
    const int there = pixels_of(tile);
    BarrierWait(barrier, round);
    round ^= 1;
#pragma unroll 4
    for (int i = threadIdx.x; i < there * (kIn / 4); i += kGridThreads) {
      StoreOrdered<kIn>(places, place_of[i / (kIn / 4)], i % (kIn / 4),
                        reinterpret_cast<const float4*>(incoming)[i]);
    }
    __syncthreads();
    if (threadIdx.x == 0 && tile + gridDim.x < p.tiles) {
      fetch(tile + gridDim.x);
    }
    for (int m = warp; m < grid.sixteens; m += kGridThreads / 32) {
      const int place = grid.first + m * 16;
      float sums[2][kOut / 8][4] = {};
      MultiplySixteen<kIn, kOut>(SharedAddress(places), filter, place, p.W,
                                 sums);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int pixel = pixel_of[place + lane / 4 + half * 8];
        const bool is_there = pixel >= 0 && pixel < there;
        const int channel = lane % 4 * 2;
        const int64_t at = (first_of(tile) + pixel) * kOut + channel;
        float2 v[kOut / 8];
#pragma unroll
        for (int j = 0; j < kOut / 8; ++j) {
          const int i = half * 2;
          v[j] = make_float2(sums[0][j][i] + sums[1][j][i],
                             sums[0][j][i + 1] + sums[1][j][i + 1]);
        }
        if constexpr (!kFlipped) {
          StoreSmall(p.out, epilogue, is_there, at, channel, v);
        } else if (is_there) {
#pragma unroll
          for (int j = 0; j < kOut / 8; ++j) {
            *reinterpret_cast<float2*>(p.out + at + j * 8) = v[j];
          }
        }
      }
    }
    __syncthreads();
  }
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_SMALL_GRID_CONV_CUH_
