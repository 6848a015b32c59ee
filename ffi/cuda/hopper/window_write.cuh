// How the window kernel writes a finished tile to shared memory, over the
// window that it was read from, and what follows a convolution on the way.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_WINDOW_WRITE_CUH_
#define JAX_CONVBATCH_CUDA_HOPPER_WINDOW_WRITE_CUH_

#include "cuda/hopper/epilogue.cuh"
#include "cuda/hopper/pipeline.cuh"
#include "cuda/hopper/window_problem.h"

namespace jax_convbatch::hopper {

// A tile of this block: its number among them, first row, how many, first
// column, image, and where it lies in the ring.
struct WindowTile {
  int turn, row, rows, col, image, stage;
  uint32_t round;
};

// Scale and bias of a thread's two channels.
struct WindowChannels {
  float scale[2] = {1.0f, 1.0f}, bias[2] = {0.0f, 0.0f};

  template <typename T>
  __device__ __forceinline__ void Load(const Epilogue& e, int channels) {
    const int k = threadIdx.x % kWarpgroup / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      auto at = [&](const void* from) {
        return static_cast<float>(
            static_cast<const T*>(from)[min(k + 8 * i, channels - 1)]);
      };
      if (e.scale != nullptr) scale[i] = at(e.scale);
      if (e.bias != nullptr) bias[i] = at(e.bias);
    }
  }
};

// Writes a warpgroup's accumulators, 64 channels of 2 kHalf pixels: `rows` of
// outputs without what lies between them. pack(v, i) rounds two neighbouring
// pixels, of the first of the thread's two channels or of the second.
template <bool kStrips, int kHalf, typename PackPair>
__device__ __forceinline__ void WriteWindow(const float (&acc)[kHalf],
                                            const WindowProblem& problem,
                                            int rows, uint32_t window,
                                            PackPair pack) {
  const WindowTiling& tiling = problem.tiling;
  constexpr int kEights = kHalf / 4;
  // A lane addresses 8 of its warp's 16 channels, of one pixel in 16.
  const int lane = threadIdx.x % 32;
  const int eight = threadIdx.x % kWarpgroup / 32 * 2 + lane / 8 % 2;
  const int first = lane / 16 * 8 + lane % 8;
  const int spare = rows * tiling.cols;  // behind the tile
#pragma unroll
  for (int j = 0; j < kEights; j += 2) {
    int to = j * 8 + first;
    if constexpr (!kStrips) {
      const int row = to * problem.reciprocal >> 16;
      const int col = to - row * tiling.width;
      const bool is_output = row < rows && col < tiling.cols;
      to = is_output ? row * tiling.cols + col : spare;
    }
    const float* v = &acc[4 * j];
    const float* w = &acc[4 * (j + 1 < kEights ? j + 1 : j)];
    StoreMatrix4Transposed(window + to * 128 + ((eight ^ to % 8) << 4),
                           pack(v, 0), pack(v, 1), pack(w, 0), pack(w, 1));
  }
}

// The same with an epilogue.
template <typename T, bool kStrips, int kHalf>
__device__ __forceinline__ void WriteLayerWindow(const Epilogue& e,
                                                 const WindowChannels& channels,
                                                 const float (&acc)[kHalf],
                                                 const WindowProblem& problem,
                                                 const WindowTile& tile,
                                                 uint32_t window) {
  auto write = [&](auto tag) {
    WriteWindow<kStrips>(
        acc, problem, tile.rows, window, [&](const float* v, int i) {
          const float scale = channels.scale[i], bias = channels.bias[i];
          return PackActivated<T, decltype(tag)::value>(
              fmaf(v[2 * i], scale, bias), fmaf(v[2 * i + 1], scale, bias));
        });
  };
  // First of all, without a jump through a table.
  if (e.activation == Activation::kRelu) {
    write(ActivationTag<Activation::kRelu>());
  } else {
    DispatchActivation(e.activation, write);
  }
  if (e.signs == nullptr) return;
  // By each warp for its 16 channels.
  __syncwarp();
  const int lane = threadIdx.x % 32;
  const int eight = threadIdx.x % kWarpgroup / 32 * 2 + lane / 16;
  const int cols = problem.tiling.cols;
  const int rows = min(tile.rows, problem.height - tile.row);
  const int eights = problem.channels / 8;
  const int64_t first =
      (int64_t{tile.image} * problem.height + tile.row) * problem.cols +
      tile.col;
  // Of a strip, what follows a row of it and lies past the image.
  const int next = problem.cols - kStripCols, past = problem.cols - tile.col;
  if (eight >= eights) return;
#pragma unroll 4
  for (int pixel = lane % 16; pixel < rows * cols; pixel += 16) {
    const float4 values =
        LoadShared4(window + pixel * 128 + ((eight ^ pixel % 8) << 4));
    int64_t at = first + pixel;
    if constexpr (kStrips) {
      if (pixel % kStripCols >= past) continue;
      at += pixel / kStripCols * next;
    }
    e.signs[at * eights + eight] = SignsOf<T>(values);
  }
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_WINDOW_WRITE_CUH_
