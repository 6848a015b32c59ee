// Writes accumulators to an output tensor, through shared memory.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_STORE_TILE_CUH_
#define JAX_CONVBATCH_CUDA_HOPPER_STORE_TILE_CUH_

#include "cuda/hopper/conv_problem.h"
#include "cuda/hopper/pipeline.cuh"

namespace jax_convbatch::hopper {

inline constexpr int kStoreBuffers = 2;  // of 64 x 64, for each warpgroup

// One warpgroup's way out. Boxes of 64 pixels x 64 channels alternate between
// the buffers; a buffer is written again once its store has read it. A kDense
// output is one matrix of pixels and channels.
template <typename T, bool kDense>
class TileStore {
 public:
  __device__ TileStore(int group, uint32_t buffers)
      : barrier_(1 + group), buffers_(buffers) {}

  // acc[m] holds pixels from pixel + 64 m of the part.
  template <int kRows, int kHalfN>
  __device__ __forceinline__ void Store(const float (&acc)[kRows][kHalfN],
                                        const ConvPart& part, int pixel,
                                        int channel, int channels) {
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
#pragma unroll
      for (int n = 0; n < 2 * kHalfN; n += 64) {
        if (channel + n < channels && pixel + m * 64 < part.pixels) {
          StoreBox(&acc[m][n / 2], part, pixel + m * 64, channel + n);
        }
      }
    }
  }

  // Shared memory must outlive the stores that read it.
  __device__ void Finish() {
    if (threadIdx.x % kWarpgroup == 0) StoreWaitRead<0>();
  }

 private:
  // The 32 accumulators of a thread for 64 columns.
  __device__ __forceinline__ void StoreBox(const float* acc,
                                           const ConvPart& part, int pixel,
                                           int channel) {
    const int thread = threadIdx.x % kWarpgroup;
    const uint32_t buffer = buffers_ + turn_ * kBoxBytes;
    turn_ = (turn_ + 1) % kStoreBuffers;
    if (thread == 0) StoreWaitRead<kStoreBuffers - 1>();
    NamedBarrier(barrier_, kWarpgroup);

    // A lane addresses row `lane % 16` of its warp's 16, 8 columns to the left
    // or to the right.
    const int lane = thread % 32;
    const int row = thread / 32 * 16 + lane % 16;
    const uint32_t line = buffer + row * 128;
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      const int eight = j + lane / 16;
      StoreMatrix4(line + ((eight ^ row % 8) << 4),
                   Pack<T>(acc[4 * j], acc[4 * j + 1]),
                   Pack<T>(acc[4 * j + 2], acc[4 * j + 3]),
                   Pack<T>(acc[4 * j + 4], acc[4 * j + 5]),
                   Pack<T>(acc[4 * j + 6], acc[4 * j + 7]));
    }
    FenceAsyncProxy();
    NamedBarrier(barrier_, kWarpgroup);
    if (thread == 0) {
      if constexpr (kDense) {
        StoreTile2(part.output, buffer, channel, pixel);
      } else {
        const int grid_row = pixel / part.cols;
        const int image = grid_row / part.rows;
        const int col = pixel - grid_row * part.cols;
        StoreIm2col(
            part.output, buffer, channel,
            part.output_w + col * part.output_step_w,
            part.output_h + (grid_row - image * part.rows) * part.output_step_h,
            image);
      }
      StoreCommit();
    }
  }

  int barrier_;
  uint32_t buffers_;
  int turn_ = 0;
};

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_STORE_TILE_CUH_
