// f32 images of 16 or 32 channels in shared memory, as grids of places that
// hold TF32 for mma.sync: what small_grid_conv.cuh and small_backward.cuh have
// in common.
//
// [place][channel]: a column of zeros follows each row and a row of zeros each
// image, so that the place that a tap of a 3x3 filter reads is a fixed distance
// from its pixel's, also over the edge.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_SMALL_GRID_CUH_
#define JAX_CONVBATCH_CUDA_HOPPER_SMALL_GRID_CUH_

#include "cuda/hopper/bulk_copy.cuh"
#include "cuda/hopper/small_grid.h"
#include "cuda/hopper/small_tf32.cuh"

namespace jax_convbatch::hopper {

// Which four words of a place's channels lie where: the number that theirs is
// added to, bit by bit without carry. So eight neighbouring places' fours meet
// in no bank, nor do two neighbouring fours each of four places.
template <int kChannels>
__device__ __forceinline__ int Turned(int place) {
  return kChannels == 32 ? place % 4 * 2 | place / 4 % 2
                         : place / 2 % 2 * 2 | place / 4 % 2;
}

// Where word `word` of a place, less than 8, lies; word 8 i more is there ^ 8
// i.
template <int kChannels>
__device__ __forceinline__ int WordAt(int place, int word) {
  return place * kChannels + (word / 4 ^ Turned<kChannels>(place)) * 4 +
         word % 4;
}

// The channels that a filter sums over are in another order: 4 i + j of sixteen
// are word 4 j + i, so that ldmatrix gives a product those that small_tf32.cuh
// multiplies together.
__device__ __forceinline__ int ChannelOf(int word) {
  return word / 16 * 16 + word % 4 * 4 + word % 16 / 4;
}

// Stores four neighbouring channels of a place in that order, rounded.
template <int kChannels>
__device__ __forceinline__ void StoreOrdered(float* grid, int place, int chunk,
                                             float4 v) {
  const int turned = chunk / 4 * 4 ^ Turned<kChannels>(place);
  float* const to = grid + place * kChannels + chunk % 4;
  to[turned * 4] = RoundTf32(v.x);
  to[(turned ^ 1) * 4] = RoundTf32(v.y);
  to[(turned ^ 2) * 4] = RoundTf32(v.z);
  to[(turned ^ 3) * 4] = RoundTf32(v.w);
}

// The filter as products take it: [tap][16 of kIn][8 of kOut][lane][4].
// kFlipped: dgrad's, as in small_tf32.cuh.
template <int kIn, int kOut, int kThreads, bool kFlipped>
__device__ __forceinline__ void LoadGridFilter(const float* w, float* to) {
  auto at = [](int tap, int in, int out) {
    const int part = (tap * (kIn / 16) + in / 16) * (kOut / 8) + out / 8;
    return part * 128 + (out % 8 * 4 + in % 16 / 4) * 4 + in % 4;
  };
#pragma unroll 4
  for (int i = threadIdx.x; i < 9 * kIn * kOut / 4; i += kThreads) {
    const float4 v = RoundTf32(__ldg(reinterpret_cast<const float4*>(w) + i));
    if constexpr (kFlipped) {
      const int in = i * 4 % kIn, out = i * 4 / kIn % kOut;
      const int tap = 8 - i * 4 / (kIn * kOut);
      *reinterpret_cast<float4*>(to + at(tap, in, out)) = v;
    } else {
      const int out = i * 4 % kOut, in = i * 4 / kOut % kIn;
      const int tap = i * 4 / (kIn * kOut);
      to[at(tap, in, out)] = v.x;
      to[at(tap, in, out + 1)] = v.y;
      to[at(tap, in, out + 2)] = v.z;
      to[at(tap, in, out + 3)] = v.w;
    }
  }
}

// Clears a grid's tables, then fills them: the places of pixels, and the other
// way round, -1 where there is none. By all threads of a block.
template <int kThreads>
__device__ __forceinline__ void FillTables(const SmallGrid& grid, int H, int W,
                                           int16_t* place_of,
                                           int16_t* pixel_of) {
  for (int i = threadIdx.x; i < grid.places; i += kThreads) pixel_of[i] = -1;
  __syncthreads();
  for (int i = threadIdx.x; i < grid.pixels; i += kThreads) {
    const int row = i / W;  // a row of zeros follows each image
    const int place = grid.first + (row + row / H) * (W + 1) + i - row * W;
    place_of[i] = static_cast<int16_t>(place);
    pixel_of[place] = static_cast<int16_t>(i);
  }
}

__device__ __forceinline__ void MultiplyMatrix(float (&sum)[4],
                                               const uint32_t (&a)[4], float b0,
                                               float b1) {
  MultiplyTf32(sum, __uint_as_float(a[0]), __uint_as_float(a[1]),
               __uint_as_float(a[2]), __uint_as_float(a[3]), b0, b1);
}

// Sixteen places from `place` on times the filter, in the order of
// small_tf32.cuh: two chains of products, to be added.
template <int kIn, int kOut>
__device__ __forceinline__ void MultiplySixteen(uint32_t grid,
                                                const float* filter, int place,
                                                int W,
                                                float (&sums)[2][kOut / 8][4]) {
  constexpr int kBlocks = kOut / 8;
  const int lane = threadIdx.x % 32;
  const auto* const weights = reinterpret_cast<const float4*>(filter) + lane;
#pragma unroll
  for (int tap = 0; tap < 9; ++tap) {
    // Whose four words this lane names to ldmatrix.
    const int from = place + lane % 16 + (tap / 3 - 1) * (W + 1) + tap % 3 - 1;
    const uint32_t words =
        grid + (from * (kIn / 4) + (lane / 16 ^ Turned<kIn>(from))) * 16;
#pragma unroll
    for (int part = 0; part < kIn / 16; ++part) {
      uint32_t a[2][4];
      LoadMatrix4(words ^ part * 64, a[0]);
      LoadMatrix4(words ^ (part * 64 + 32), a[1]);
#pragma unroll
      for (int j = 0; j < kBlocks; ++j) {
        const float4 b =
            weights[((tap * (kIn / 16) + part) * kBlocks + j) * 32];
        MultiplyMatrix(sums[0][j], a[0], b.x, b.y);
        MultiplyMatrix(sums[1][j], a[1], b.z, b.w);
      }
    }
  }
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_SMALL_GRID_CUH_
