// SPDX-License-Identifier: Apache-2.0
// How the row-band kernel writes a finished tile to shared memory, over the row
// band that it was read from, and what follows a convolution on the way.
#pragma once

#include "cuda/sm90/copy/pipeline.cuh"
#include "cuda/sm90/epilogue/epilogue.cuh"
#include "cuda/sm90/kernels/row_band/row_band_problem.h"

namespace jax_convbatch::hopper {

// A tile of this block: its number among them, first row, how many, first
// column, image, where it lies in the ring, and its first channel.
struct RowBandTile {
  int turn, row, rows, col, image, stage, channel;
  uint32_t round;
};

// Of a thread's two channels: what their sums begin with, the bias unless it
// follows a scale; then scale and bias.
struct RowBandChannels {
  float begin[2] = {0.0f, 0.0f}, scale[2] = {1.0f, 1.0f};
  float bias[2] = {-0.0f, -0.0f};

  template <typename T, typename EpilogueT>
  __device__ __forceinline__ void Load(const EpilogueT& epilogue, int first,
                                       int channels) {
    const int k =
        first + threadIdx.x % kWarpgroup / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      auto at = [&](const void* from) {
        return static_cast<float>(
            static_cast<const T*>(from)[min(k + 8 * i, channels - 1)]);
      };
      bool adds = false;
      if constexpr (!EpilogueT::kPlain) {
        adds = epilogue.scale != nullptr;
        if (adds) scale[i] = at(epilogue.scale);
      }
      if (epilogue.bias != nullptr)
        (adds ? bias : begin)[i] = at(epilogue.bias);
    }
  }
};

// Writes a warpgroup's accumulators, 64 channels of 2 kHalf pixels: `rows` of
// outputs without what lies between them. pack(v, i) rounds two neighbouring
// pixels, of the first of the thread's two channels or of the second.
template <bool kColumnStrips, int kHalf, typename PackPair>
__device__ __forceinline__ void WriteRowBand(const float (&acc)[kHalf],
                                             const RowBandProblem& problem,
                                             int rows, uint32_t band,
                                             PackPair pack) {
  const RowBandTiling& tiling = problem.tiling;
  constexpr int kEights = kHalf / 4;
  // A lane addresses 8 of its warp's 16 channels, of one pixel in 16.
  const int lane = threadIdx.x % 32;
  const int eight = threadIdx.x % kWarpgroup / 32 * 2 + lane / 8 % 2;
  const int first = lane / 16 * 8 + lane % 8;
  const int spare = rows * tiling.cols;  // behind the tile
#pragma unroll
  for (int j = 0; j < kEights; j += 2) {
    int to = j * 8 + first;
    if constexpr (!kColumnStrips) {
      const int row = to * problem.reciprocal >> 16;
      const int col = to - row * tiling.width;
      const bool is_output = row < rows && col < tiling.cols;
      to = is_output ? row * tiling.cols + col : spare;
    }
    const float* v = &acc[4 * j];
    const float* w = &acc[4 * (j + 1 < kEights ? j + 1 : j)];
    StoreMatrix4Transposed(band + to * 128 + ((eight ^ to % 8) << 4),
                           pack(v, 0), pack(v, 1), pack(w, 0), pack(w, 1));
  }
}

// The same of accumulators that are 64 pixels of 64 channels each.
template <typename T, int kRows>
__device__ __forceinline__ void WriteGroupRowBand(const float (&acc)[kRows][32],
                                                  const RowBandProblem& problem,
                                                  int rows, uint32_t band) {
  const RowBandTiling& tiling = problem.tiling;
  const int lane = threadIdx.x % 32;
  const int first = threadIdx.x % kWarpgroup / 32 * 16 + lane % 16;
  const int spare = rows * tiling.cols;  // behind the tile
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
    const int pixel = m * 64 + first;
    const int row = pixel * problem.reciprocal >> 16;
    const int col = pixel - row * tiling.width;
    const bool is_output = row < rows && col < tiling.cols;
    const int to = is_output ? row * tiling.cols + col : spare;
#pragma unroll
    for (int j = 0; j < 8; j += 2) {  // 8 channels each
      const float* v = &acc[m][4 * j];
      StoreMatrix4(band + to * 128 + (((j + lane / 16) ^ to % 8) << 4),
                   Pack<T>(v[0], v[1]), Pack<T>(v[2], v[3]),
                   Pack<T>(v[4], v[5]), Pack<T>(v[6], v[7]));
    }
  }
}

// Writes the bitmask of what a warp has written, for its 16 channels.
template <typename T, bool kColumnStrips>
__device__ __forceinline__ void WriteRowBandBitmask(
    uint8_t* bitmask, const RowBandProblem& problem, const RowBandTile& tile,
    uint32_t band) {
  __syncwarp();
  const int lane = threadIdx.x % 32;
  const int eight = threadIdx.x % kWarpgroup / 32 * 2 + lane / 16;
  const int cols = problem.tiling.cols;
  const int rows = min(tile.rows, problem.height - tile.row);
  const int eights = problem.channels / 8;
  const int to = tile.channel / 8 + eight;
  const int64_t first =
      (int64_t{tile.image} * problem.height + tile.row) * problem.cols +
      tile.col;
  // Of a strip, what follows a row of it and lies past the image.
  const int next = problem.cols - kColumnStripCols,
            past = problem.cols - tile.col;
  if (to >= eights) return;
#pragma unroll 4
  for (int pixel = lane % 16; pixel < rows * cols; pixel += 16) {
    const float4 values =
        LoadShared4(band + pixel * 128 + ((eight ^ pixel % 8) << 4));
    int64_t at = first + pixel;
    if constexpr (kColumnStrips) {
      if (pixel % kColumnStripCols >= past) continue;
      at += pixel / kColumnStripCols * next;
    }
    bitmask[at * eights + to] = BitmaskOf<T>(values);
  }
}

// The same with what follows a convolution.
template <typename T, bool kColumnStrips, typename EpilogueT, int kHalf>
__device__ __forceinline__ void WriteLayerRowBand(
    const EpilogueT& epilogue, const RowBandChannels& channels,
    const float (&acc)[kHalf], const RowBandProblem& problem,
    const RowBandTile& tile, uint32_t band) {
  auto write = [&](auto pack) {
    WriteRowBand<kColumnStrips>(acc, problem, tile.rows, band, pack);
  };
  if constexpr (EpilogueT::kPlain) {
    if (EpilogueT::kBitmask || epilogue.relu) {
      write([](const float* v, int i) {
        return PackRelu<T>(v[2 * i], v[2 * i + 1]);
      });
    } else {
      write([](const float* v, int i) {
        return Pack<T>(v[2 * i], v[2 * i + 1]);
      });
    }
    if constexpr (EpilogueT::kBitmask) {
      WriteRowBandBitmask<T, kColumnStrips>(epilogue.bitmask, problem, tile,
                                            band);
    }
  } else {
    DispatchActivation(epilogue.activation, [&](auto tag) {
      write([&](const float* v, int i) {
        const float scale = channels.scale[i], bias = channels.bias[i];
        return PackActivated<T, decltype(tag)::value>(
            fmaf(v[2 * i], scale, bias), fmaf(v[2 * i + 1], scale, bias));
      });
    });
    if (epilogue.bitmask != nullptr) {
      WriteRowBandBitmask<T, kColumnStrips>(epilogue.bitmask, problem, tile,
                                            band);
    }
  }
}

}  // namespace jax_convbatch::hopper
