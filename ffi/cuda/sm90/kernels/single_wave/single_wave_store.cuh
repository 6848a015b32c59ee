// SPDX-License-Identifier: Apache-2.0
// What sums of one tile a block begin with, and how they leave the multiplying
// warpgroup's registers: 64 channels as rows, pixels as columns.
#pragma once

#include "cuda/sm90/copy/pipeline.cuh"
#include "cuda/sm90/epilogue/epilogue.cuh"

namespace jax_convbatch::hopper {

// With the bias, from `channel` on, or zero.
template <typename T, typename EpilogueT, int kHalf>
__device__ __forceinline__ void BeginColumns(const EpilogueT& epilogue,
                                             int channel, int channels,
                                             float (&acc)[kHalf]) {
  float begin[2] = {0.0f, 0.0f};  // of the thread's two channels
  if constexpr (EpilogueT::kPresent) {
    if (epilogue.bias != nullptr) {
      const int k =
          channel + threadIdx.x % kWarpgroup / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        begin[i] = static_cast<float>(
            static_cast<const T*>(epilogue.bias)[min(k + 8 * i, channels - 1)]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kHalf; ++i) acc[i] = begin[i / 2 % 2];
}

// Writes a box of pixels to shared memory, each where place(pixel) says.
template <typename T, typename EpilogueT, int kHalf, typename Place>
__device__ __forceinline__ void WriteColumns(const EpilogueT& epilogue,
                                             const float (&acc)[kHalf],
                                             uint32_t buffer, Place place) {
  constexpr int kEights = kHalf / 4;
  // A lane addresses 8 of its warp's 16 channels, of one pixel in 16.
  const int lane = threadIdx.x % 32;
  const int eight = threadIdx.x % kWarpgroup / 32 * 2 + lane / 8 % 2;
  const int first = lane / 16 * 8 + lane % 8;
  auto write = [&](auto pack) {
#pragma unroll
    for (int j = 0; j < kEights; j += 2) {
      const int to = place(j * 8 + first);
      const float* v = &acc[4 * j];
      const float* w = &acc[4 * (j + 1 < kEights ? j + 1 : j)];
      StoreMatrix4Transposed(buffer + to * 128 + ((eight ^ to % 8) << 4),
                             pack(v[0], v[1]), pack(v[2], v[3]),
                             pack(w[0], w[1]), pack(w[2], w[3]));
    }
  };
  if constexpr (EpilogueT::kPlain) {
    if (EpilogueT::kBitmask || epilogue.relu) {
      write([](float low, float high) { return PackRelu<T>(low, high); });
      return;
    }
  }
  write([](float low, float high) { return Pack<T>(low, high); });
}

// Writes the bitmask of `count` pixels of a box, number `first` of the output
// and on, by each warp for the 16 channels that it has written.
template <typename T, typename EpilogueT>
__device__ __forceinline__ void WriteColumnBitmask(const EpilogueT& epilogue,
                                                   uint32_t buffer,
                                                   int64_t first, int count,
                                                   int channel, int channels) {
  if constexpr (EpilogueT::kBitmask) {
    __syncwarp();
    const int lane = threadIdx.x % 32;
    const int eight = threadIdx.x % kWarpgroup / 32 * 2 + lane / 16;
    const int at = channel / 8 + eight, eights = channels / 8;
    if (at >= eights) return;
#pragma unroll 4
    for (int pixel = lane % 16; pixel < count; pixel += 16) {
      const float4 values =
          LoadShared4(buffer + pixel * 128 + ((eight ^ pixel % 8) << 4));
      epilogue.bitmask[(first + pixel) * eights + at] = BitmaskOf<T>(values);
    }
  }
}

}  // namespace jax_convbatch::hopper
