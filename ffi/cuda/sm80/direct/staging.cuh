// SPDX-License-Identifier: Apache-2.0
// Tiles of an activation tensor in shared memory: a box of pixels by a range of
// channels, with zeros outside the image and past the last channel.
#pragma once

#include <cstdint>

#include "cuda/common/fast_divmod.h"
#include "cuda/sm80/direct/walk.h"

namespace jax_convbatch::direct {

// What every tile of one operand has in common.
struct Staging {
  int height, width;  // of the image
  int channels;       // of the tensor
  int row_stride;     // elements from one row of the image to the next
  int64_t sample_stride;
  int rows, row_bytes, pixel_bytes;
  int cols, chunks;  // pixels a row; 16-byte chunks a pixel

  __host__ __device__ int bytes() const { return rows * row_bytes; }
};

// Pixels are `pixel_bytes` apart and hold `tile_channels`, rows `row_bytes`.
template <typename T>
Staging MakeStaging(int height, int width, int channels, int tile_channels,
                    int rows, int cols, int pixel_bytes, int row_bytes) {
  Staging s{};
  s.height = height;
  s.width = width;
  s.channels = channels;
  s.row_stride = width * channels;
  s.sample_stride = int64_t{height} * s.row_stride;
  s.rows = rows;
  s.cols = cols;
  s.chunks = (tile_channels * static_cast<int>(sizeof(T)) + 15) / 16;
  s.pixel_bytes = pixel_bytes;
  s.row_bytes = row_bytes;
  return s;
}

// Tiles, tile_h x tile_w outputs each, of a batch of images; numbered along
// the width first.
struct TileGrid {
  FastDivmod<uint32_t> across, down;
  int tile_h, tile_w;
  int tiles;  // of the whole batch
};

struct TilePlace {
  int sample, row, col;  // of the first output
};

inline __device__ TilePlace PlaceOf(const TileGrid& grid, uint32_t tile) {
  const int col = TakeDigit(grid.across, tile) * grid.tile_w;
  const int row = TakeDigit(grid.down, tile) * grid.tile_h;
  return {static_cast<int>(tile), row, col};
}

inline __device__ void CopyAsync16(char* to, const void* from, bool inside) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address),
               "l"(from), "r"(inside ? 16 : 0));
}

inline __device__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Until at most kPending of the last groups are under way.
template <int kPending>
__device__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// One thread's share of copying tiles of one operand: a chunk of one column, or
// of several where a row has more chunks than the block threads.
template <typename T, bool kAligned>
class Stager {
 public:
  __device__ Stager(const Staging& s, const void* tensor, int channel) : s_(s) {
    const int chunk = threadIdx.x % s.chunks, lane = threadIdx.x / s.chunks;
    const int lanes = blockDim.x / s.chunks;
    const bool whole_rows = lanes >= s.cols;
    step_x_ = whole_rows ? s.cols : lanes;
    step_y_ = whole_rows ? lanes / s.cols : 1;
    x_ = whole_rows ? lane % s.cols : lane;
    y_ = whole_rows ? lane / s.cols : 0;
    // Threads that are left over have nothing to do.
    if (lane >= lanes || y_ >= step_y_) y_ = s.rows;
    left_ = s.channels - channel - chunk * kChunk;
    from_ = static_cast<const T*>(tensor) + channel + chunk * kChunk;
    to_ = chunk * 16;
  }

  // Starts to fill `tile` from row `row`, column `col` of an image on. To be
  // waited for, and followed by a barrier.
  __device__ void Fill(char* tile, int sample, int row, int col) const {
    const T* const image = from_ + sample * s_.sample_stride;
    for (int x = x_; x < s_.cols; x += step_x_) {
      const int w = col + x;
      const int left = static_cast<unsigned>(w) < s_.width ? left_ : 0;
      const T* from = image + (row + y_) * s_.row_stride + w * s_.channels;
      char* to = tile + to_ + y_ * s_.row_bytes + x * s_.pixel_bytes;
      for (int y = y_; y < s_.rows; y += step_y_) {
        const bool inside = static_cast<unsigned>(row + y) < s_.height;
        Copy(to, from, inside ? left : 0);
        from += step_y_ * s_.row_stride;
        to += step_y_ * s_.row_bytes;
      }
    }
  }

 private:
  static constexpr int kChunk = 16 / sizeof(T);

  // The first `left` elements of a chunk, then zeros.
  __device__ static void Copy(char* to, const T* from, int left) {
    if constexpr (kAligned) {
      CopyAsync16(to, from, left > 0);
    } else {
      alignas(16) T values[kChunk];
#pragma unroll
      for (int e = 0; e < kChunk; ++e) {
        values[e] = e < left ? from[e] : T(0.0f);
      }
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<uint4*>(values);
    }
  }

  const Staging& s_;
  const T* from_;
  int to_, left_, x_, y_, step_x_, step_y_;
};

}  // namespace jax_convbatch::direct
