// SPDX-License-Identifier: Apache-2.0
// How a tile leaves the multiplying warpgroup's registers where an epilogue
// follows the convolution.
#pragma once

#include "cuda/sm90/copy/pipeline.cuh"
#include "cuda/sm90/epilogue/epilogue.cuh"
#include "cuda/sm90/epilogue/store_tile.cuh"
#include "cuda/sm90/kernels/conv/residue_n_tiles.cuh"

namespace jax_convbatch::hopper {

// Where a tile of `pixels` x `channels` lies, and how large the result is.
struct LayerPlace {
  int pixel, channel, pixels, channels;
};

// Adds up what four neighbouring threads have of four words; each gets the word
// of its own number.
__device__ __forceinline__ uint32_t GatherBits(const uint32_t* words) {
  const bool odd = threadIdx.x % 2 != 0, high = threadIdx.x / 2 % 2 != 0;
  uint32_t kept[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t low = words[2 * i], up = words[2 * i + 1];
    kept[i] = (odd ? up : low) | __shfl_xor_sync(~0u, odd ? low : up, 1);
  }
  return (high ? kept[1] : kept[0]) |
         __shfl_xor_sync(~0u, high ? kept[0] : kept[1], 2);
}

// BitmaskAt of relu as bits: for each 64 rows m, of the row lane / 4 and then
// of that 8 further on, a word for every 32 columns. A thread sets the bits of
// its own columns, that of column c where bits 0 and 4 of c are exchanged, as
// packed pairs have odd columns in the high half.
template <int kRows, int kHalfN>
using BitmaskWords = uint32_t[kRows][kHalfN / 8];

// Exchanges bit i of a word, for all i, with that whose number has bits 0 and 4
// exchanged.
__device__ __forceinline__ uint32_t InOrder(uint32_t word) {
  const uint32_t differ = (word >> 15 ^ word) & 0xaaaau;
  return word ^ differ ^ differ << 15;
}

// Of a warp's rows, from `row` on of each 64.
template <int kRows, int kWords>
__device__ __forceinline__ void WriteBitmask(
    uint8_t* bitmask, const uint32_t (&words)[kRows][kWords],
    const LayerPlace& tile, int row) {
  constexpr int kPerRow = kWords / 2, kAll = kRows * kWords;
  static_assert(kAll % 4 == 0);
  const int bytes = tile.channels / 8;  // of a pixel
  const int pixel = tile.pixel + row;
  uint8_t* const corner = bitmask + int64_t{pixel} * bytes + tile.channel / 8;
#pragma unroll
  for (int g = 0; g < kAll; g += 4) {
    uint32_t four[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      four[i] = words[(g + i) / kWords][(g + i) % kWords];
    }
    const uint32_t word = InOrder(GatherBits(four));
    const int number = g + threadIdx.x % 4;
    const int row_of_8 = number / kPerRow;  // two of each 64 rows
    const int down = row_of_8 / 2 * 64 + row_of_8 % 2 * 8;
    const int right = number % kPerRow * 4;
    const int left = bytes - tile.channel / 8 - right;
    if (pixel + down >= tile.pixels || left <= 0) continue;
    uint8_t* const to = corner + down * bytes + right;
    if (bytes % 4 == 0) {
      *reinterpret_cast<uint32_t*>(to) = word;
    } else {
#pragma unroll 1
      for (int i = 0; i < min(4, left); ++i) {
        to[i] = static_cast<uint8_t>(word >> 8 * i);
      }
    }
  }
}

// Writes the activations of a warpgroup's tile to a buffer in shared memory
// that is laid out as by WriteTile of store_tile.cuh.
template <typename T, int kRows, int kHalfN>
struct LayerTile {
  static constexpr int kBoxes = kHalfN / 32;  // along the channels
  static constexpr int kEights = kHalfN / 4;
  using Sums = float[kRows][kHalfN];

  uint32_t buffer;
  uint64_t* written;
  int lane = threadIdx.x % 32;
  int warp_row = threadIdx.x % kWarpgroup / 32 * 16;

  // Of a lane's row of its warp's 16: of 8 columns, and 8 more.
  __device__ __forceinline__ uint32_t Address(int m, int j) const {
    const int row = warp_row + lane % 16;
    if constexpr (kIsResidueN<2 * kHalfN>) {
      return buffer + ResidueNTileOffset<kHalfN>(m, row, j + lane / 16);
    }
    const int line = (m * kBoxes + j / 8) * 64 + row;
    const int eight = j % 8 + lane / 16;
    return buffer + line * 128 + ((eight ^ line % 8) << 4);
  }

  __device__ __forceinline__ void Store(int m, int j,
                                        const uint32_t (&v)[4]) const {
    StoreMatrix4(Address(m, j), v[0], v[1], v[2], v[3]);
  }

  // The warp's rows are there.
  __device__ __forceinline__ void Leave() const {
    FenceAsyncProxy();
    __syncwarp();
    if (lane == 0) BarrierArrive(SharedAddress(written));
  }

  // What pair(two) makes of two neighbouring columns, packed.
  template <typename Pair>
  __device__ __forceinline__ void StorePairs(const Sums& acc, Pair pair) const {
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
#pragma unroll
      for (int j = 0; j < kEights; j += 2) {
        uint32_t v[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          v[i] = pair(&acc[m][4 * j + 2 * i]);
        }
        Store(m, j, v);
      }
    }
    Leave();
  }

  // The same with the bitmask of what it makes.
  template <typename Pair>
  __device__ __forceinline__ void StoreWithBitmask(
      const Sums& acc, Pair pair, uint8_t* bitmask,
      const LayerPlace& tile) const {
    BitmaskWords<kRows, kHalfN> words;
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
#pragma unroll
      for (int w = 0; w < kHalfN / 16; ++w) {
        uint32_t bits[2] = {};
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
          uint32_t v[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int at = 4 * w + j;
            v[i] = pair(&acc[m][4 * at + 2 * i]);
            const int eight = j + i / 2;
            bits[i % 2] |=
                Positive<T>(v[i]) & (0x00010001u << eight % 2 * 8 + eight / 2);
          }
          Store(m, 4 * w + j, v);
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          words[m][h * (kHalfN / 16) + w] = bits[h] << lane % 4 * 2;
        }
      }
    }
    Leave();
    WriteBitmask(bitmask, words, tile, warp_row + lane / 4);
  }
};

// relu of two columns.
template <typename T>
struct PackReluOf {
  __device__ __forceinline__ uint32_t operator()(const float* two) const {
    return PackRelu<T>(two[0], two[1]);
  }
};

// Of sums that began with the bias.
template <typename T, bool kBitmask, int kRows, int kHalfN>
__device__ __forceinline__ void WritePlainTile(
    const PlainEpilogue<kBitmask>& epilogue, const float (&acc)[kRows][kHalfN],
    uint32_t buffer, uint64_t* written, const LayerPlace& tile) {
  const LayerTile<T, kRows, kHalfN> out{buffer, written};
  if constexpr (kBitmask) {
    out.StoreWithBitmask(acc, PackReluOf<T>{}, epilogue.bitmask, tile);
  } else if (epilogue.relu) {
    out.StorePairs(acc, PackReluOf<T>{});
  } else if constexpr (kIsResidueN<2 * kHalfN>) {
    WriteResidueNTile<T>(acc, buffer, written);
  } else {
    WriteTile<T>(acc, buffer, written);
  }
}

// What follows scale and bias, of any epilogue. The residual lies in the
// buffer. What z needs goes through it, by each warp for its own rows.
template <typename T, int kRows, int kHalfN>
__device__ __forceinline__ void WriteLayerTile(const Epilogue& e,
                                               float (&acc)[kRows][kHalfN],
                                               uint32_t buffer,
                                               uint64_t* written,
                                               const LayerPlace& tile) {
  const LayerTile<T, kRows, kHalfN> out{buffer, written};
  constexpr int kBoxes = out.kBoxes;
  if (e.residual != nullptr) {
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
#pragma unroll
      for (int j = 0; j < kHalfN / 4; j += 2) {
        uint32_t packed[4];
        LoadMatrix4(out.Address(m, j), packed);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 residual = Unpack<T>(packed[i]);
          acc[m][4 * j + 2 * i] += residual.x;
          acc[m][4 * j + 2 * i + 1] += residual.y;
        }
      }
    }
  }
  if (e.z != nullptr) {
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
#pragma unroll
      for (int j = 0; j < kHalfN / 4; j += 2) {
        const float* v = &acc[m][4 * j];
        const uint32_t packed[4] = {Pack<T>(v[0], v[1]), Pack<T>(v[2], v[3]),
                                    Pack<T>(v[4], v[5]), Pack<T>(v[6], v[7])};
        out.Store(m, j, packed);
      }
    }
    __syncwarp();
    const int c = tile.channel + out.lane % 8 * 8;
    for (int box = 0; box < kRows * kBoxes; ++box) {
      const int m = box / kBoxes, n = box % kBoxes;
      for (int r = out.lane / 8; r < 16; r += 4) {
        const int at = out.warp_row + r;
        const int64_t p = tile.pixel + m * 64 + at;
        if (p >= tile.pixels || c + n * 64 >= tile.channels) continue;
        const float4 eight = LoadShared4(buffer + box * kBoxBytes + at * 128 +
                                         ((out.lane % 8 ^ at % 8) << 4));
        T* z = static_cast<T*>(e.z) + p * tile.channels + c + n * 64;
        *reinterpret_cast<float4*>(z) = eight;
      }
    }
    __syncwarp();
  }
  if (e.bitmask == nullptr) {
    StoreActivated<T>(e, acc, [&](int m, int j, const uint32_t (&v)[4]) {
      out.Store(m, j, v);
    });
    out.Leave();
  } else {
    out.StoreWithBitmask(acc, PackReluOf<T>{}, e.bitmask, tile);
  }
}

}  // namespace jax_convbatch::hopper
