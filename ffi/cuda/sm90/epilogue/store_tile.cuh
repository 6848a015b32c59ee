// SPDX-License-Identifier: Apache-2.0
// The way out of a block: the multiplying warpgroups write whole tiles to a
// ring of buffers in shared memory, one warp stores them.
#pragma once

#include <type_traits>

#include "cuda/sm90/copy/copies_3d.cuh"
#include "cuda/sm90/copy/group_copies.cuh"
#include "cuda/sm90/copy/pipeline.cuh"
#include "cuda/sm90/problem/conv_problem.h"

namespace jax_convbatch::hopper {

// A tile lies in boxes of 64 pixels x 64 channels, channels first. `free` is
// one a warpgroup, as each waits for phases of its own: the buffer that it
// writes next has been read.
template <int kBuffers>
struct alignas(8) StoreBarriers {
  uint64_t written[kBuffers], free[kConsumers];

  __device__ void Init(int warps) {  // by one thread
    for (uint64_t& barrier : written) {
      BarrierInit(SharedAddress(&barrier), warps);
    }
    for (uint64_t& barrier : free) BarrierInit(SharedAddress(&barrier), 1);
    FenceBarrierInit();
  }
};

// Writes a warpgroup's accumulators: acc[m] holds 64 pixels, 2 kHalfN channels.
template <typename T, int kRows, int kHalfN>
__device__ __forceinline__ void WriteTile(const float (&acc)[kRows][kHalfN],
                                          uint32_t buffer, uint64_t* written) {
  // A lane addresses row `lane % 16` of its warp's 16, 8 columns to the left or
  // to the right.
  const int lane = threadIdx.x % 32;
  const int row = threadIdx.x % kWarpgroup / 32 * 16 + lane % 16;
  constexpr int kBoxes = kHalfN / 32;  // along the channels
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
#pragma unroll
    for (int j = 0; j < kHalfN / 4; j += 2) {  // 8 columns each
      const int line = (m * kBoxes + j / 8) * 64 + row;
      const int eight = j % 8 + lane / 16;
      const float* v = &acc[m][4 * j];
      StoreMatrix4(buffer + line * 128 + ((eight ^ line % 8) << 4),
                   Pack<T>(v[0], v[1]), Pack<T>(v[2], v[3]),
                   Pack<T>(v[4], v[5]), Pack<T>(v[6], v[7]));
    }
  }
  FenceAsyncProxy();
  __syncwarp();
  if (lane == 0) BarrierArrive(SharedAddress(written));
}

// Pixels of a sub-problem, from `pixel` on: where they lie in the output.
__device__ __forceinline__ PixelPlace OutputPixel(const ConvSubproblem& sub,
                                                  int pixel) {
  const int row = pixel / sub.cols;
  const int slice = row / sub.rows;
  const int image = slice / sub.slices;
  return {sub.output_w + (pixel - row * sub.cols) * sub.output_step_w,
          sub.output_h + (row - slice * sub.rows) * sub.output_step_h, image,
          sub.output_d + (slice - image * sub.slices) * sub.output_step_d};
}

// Issues the stores of a tile, by one thread. A kDense output is one matrix of
// pixels and channels. Boxes are box_bytes apart: 0 where one box of zeros is
// the whole tile. A paced store waits for each box before the next, so that it
// does not hold up the loads of tiles that the tensor cores wait for.
// kGroups: `channel` is one of `group`, which has so many. Its boxes have
// GroupStorePixels().
template <int kM, int kN, bool kDense, bool kGroups = false>
__device__ __forceinline__ void StoreTile(const ConvSubproblem& sub,
                                          uint32_t buffer, int box_bytes,
                                          bool paced, int pixel, int channel,
                                          int channels, bool volumes,
                                          int group = 0) {
  const int step = kGroups && !kDense ? GroupStorePixels(sub.pixels, 64) : 64;
  for (int m = 0; m < kM && pixel + m < sub.pixels; m += step) {
    const PixelPlace at = OutputPixel(sub, pixel + m);
    for (int n = 0; n < kN && channel + n < channels; n += 64) {
      const uint32_t box = buffer + (m / 64 * (kN / 64) + n / 64) * box_bytes +
                           (kGroups && !kDense ? m % 64 * 128 : 0);
      if constexpr (kGroups && kDense) {
        StoreTile3(sub.output, box, channel + n, group, pixel + m);
      } else if constexpr (kGroups) {
        StoreGroupIm2col(sub.output, box, channel + n, at.w, at.h, at.image,
                         group);
      } else if constexpr (kDense) {
        StoreTile2(sub.output, box, channel + n, pixel + m);
      } else {
        StorePixels(volumes, sub.output, box, channel + n, at);
      }
      if (paced) {
        StoreCommit();
        StoreWaitRead<0>();
      }
    }
  }
  StoreCommit();
}

}  // namespace jax_convbatch::hopper
