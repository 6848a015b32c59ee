// fprop and dgrad at stride 1 of up to 64 channels on either side, with each
// tile's pixels in shared memory once for all taps.
//
// Products have channels as rows and pixels as columns: 64 x 232 of them read
// 79 bytes of shared memory a cycle, where tiles of 64 channels as columns read
// the 128 that there are. The filter stays in shared memory. A tap's pixels are
// the window from another pixel on: rows of a box are 128 bytes, and the
// swizzle follows from the address, so that an operand may begin at any of
// them. Between two rows of outputs the window holds R - 1 pixels that belong
// to none: they are multiplied, but not written.
//
// Two warpgroups take turns, as in conv_kernel.cuh. A finished tile is written
// over the window that it was read from.
//
// Each output adds in the same order as there.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_WINDOW_KERNEL_CUH_
#define JAX_CONVBATCH_CUDA_HOPPER_WINDOW_KERNEL_CUH_

#include <type_traits>

#include "cuda/hopper/epilogue.cuh"
#include "cuda/hopper/pipeline.cuh"
#include "cuda/hopper/window_problem.h"

namespace jax_convbatch::hopper {

struct WindowBarriers {
  uint64_t filter[kMaxWindowTaps];
  uint64_t full[kMaxWindowStages];     // copied
  uint64_t written[kMaxWindowStages];  // multiplied, and the result is there
  uint64_t empty[kMaxWindowStages];    // stored
  uint64_t turn[kConsumers];  // the other warpgroup's tile is under way

  // Of the first copies, and of all else; each by one thread.
  __device__ void InitFirst() {
    BarrierInit(SharedAddress(&full[0]), 1);
    for (uint64_t& tap : filter) BarrierInit(SharedAddress(&tap), 1);
    FenceBarrierInit();
  }
  __device__ void Init() {
    for (int i = 0; i < kMaxWindowStages; ++i) {
      if (i > 0) BarrierInit(SharedAddress(&full[i]), 1);
      BarrierInit(SharedAddress(&written[i]), kWarpgroup / 32);
      BarrierInit(SharedAddress(&empty[i]), 1);
    }
    for (uint64_t& barrier : turn) {
      BarrierInit(SharedAddress(&barrier), kWarpgroup / 32);
    }
    FenceBarrierInit();
  }
};

// A tile of this block: its number among them, first row, how many, image, and
// where it lies in the ring.
struct WindowTile {
  int turn, row, rows, image, stage;
  uint32_t round;
};

// Where number t of all lies.
__device__ __forceinline__ void Place(const WindowProblem& problem, int t,
                                      WindowTile* tile) {
  int row = 0;
  tile->rows = problem.tiling.rows;
  if (t >= problem.whole) {
    const int single = t - problem.whole;
    t = problem.whole + single / tile->rows;
    row = single % tile->rows;
    tile->rows = 1;
  }
  tile->image = t / problem.groups;
  tile->row = (t - tile->image * problem.groups) * problem.tiling.rows + row;
}

__device__ __forceinline__ WindowTile
FirstWindow(const WindowProblem& problem) {
  WindowTile tile{};
  Place(problem, blockIdx.x, &tile);
  return tile;
}

// Calls visit(tile) for the tiles of this block, in order.
template <typename Visit>
__device__ __forceinline__ void ForWindows(const WindowProblem& problem,
                                           Visit visit) {
  WindowTile tile{};
  for (int t = blockIdx.x; t < problem.tiles; t += gridDim.x) {
    Place(problem, t, &tile);
    visit(tile);
    ++tile.turn;
    if (++tile.stage == problem.tiling.stages) {
      tile.stage = 0;
      tile.round ^= 1;
    }
  }
}

// By one thread.
__device__ __forceinline__ void LoadFilter(const WindowProblem& problem,
                                           uint32_t filter,
                                           WindowBarriers& barriers) {
  const TapAxis &h = problem.taps_h, &w = problem.taps_w;
  uint64_t* barrier = barriers.filter;
  for (int r = 0; r < h.count; ++r) {
    for (int s = 0; s < w.count; ++s) {
      const uint32_t full = SharedAddress(barrier++);
      BarrierArriveExpect(full, kBoxBytes);
      LoadTile3(filter, problem.weights, full, 0, 0,
                (h.tap + r * h.tap_step) * problem.filter_width + w.tap +
                    s * w.tap_step);
      filter += kBoxBytes;
    }
  }
}

__device__ __forceinline__ void LoadWindow(const WindowProblem& problem,
                                           const WindowTile& tile,
                                           uint32_t ring,
                                           WindowBarriers& barriers) {
  const WindowTiling& tiling = problem.tiling;
  const uint32_t full = SharedAddress(&barriers.full[tile.stage]);
  BarrierArriveExpect(full, tiling.box_rows * tiling.width * 128);
  LoadTile4(ring + tile.stage * tiling.stage_bytes, problem.input, full, 0,
            problem.input_w, problem.input_h + tile.row, tile.image);
}

// By one thread, before the block's other barriers stand, as in
// conv_kernel.cuh. The filter comes behind the first tile, tap by tap.
__device__ __forceinline__ void LoadFirst(const WindowProblem& problem,
                                          uint32_t filter, uint32_t ring,
                                          WindowBarriers& barriers) {
  LoadWindow(problem, FirstWindow(problem), ring, barriers);
  LoadFilter(problem, filter, barriers);
}

// By one thread: all tiles but the first.
__device__ __forceinline__ void LoadWindows(const WindowProblem& problem,
                                            uint32_t ring,
                                            WindowBarriers& barriers) {
  ForWindows(problem, [&](const WindowTile& tile) {
    if (tile.turn == 0) return;
    BarrierWait(SharedAddress(&barriers.empty[tile.stage]), tile.round ^ 1);
    LoadWindow(problem, tile, ring, barriers);
  });
}

// By one thread.
__device__ __forceinline__ void StoreWindows(const WindowProblem& problem,
                                             uint32_t ring,
                                             WindowBarriers& barriers) {
  ForWindows(problem, [&](const WindowTile& tile) {
    BarrierWait(SharedAddress(&barriers.written[tile.stage]), tile.round);
    StoreTile4(tile.rows == 1 ? problem.row : problem.output,
               ring + tile.stage * problem.tiling.stage_bytes, 0, 0, tile.row,
               tile.image);
    StoreCommit();
    StoreWaitRead<0>();
    BarrierArrive(SharedAddress(&barriers.empty[tile.stage]));
  });
}

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
template <int kHalf, typename PackPair>
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
    const int pixel = j * 8 + first;
    const int row = pixel * problem.reciprocal >> 16;
    const int col = pixel - row * tiling.width;
    const bool is_output = row < rows && col < tiling.cols;
    const int to = is_output ? row * tiling.cols + col : spare;
    const float* v = &acc[4 * j];
    const float* w = &acc[4 * (j + 1 < kEights ? j + 1 : j)];
    StoreMatrix4Transposed(window + to * 128 + ((eight ^ to % 8) << 4),
                           pack(v, 0), pack(v, 1), pack(w, 0), pack(w, 1));
  }
}

// The same with an epilogue.
template <typename T, int kHalf>
__device__ __forceinline__ void WriteLayerWindow(const Epilogue& e,
                                                 const WindowChannels& channels,
                                                 const float (&acc)[kHalf],
                                                 const WindowProblem& problem,
                                                 const WindowTile& tile,
                                                 uint32_t window) {
  auto write = [&](auto tag) {
    WriteWindow(acc, problem, tile.rows, window, [&](const float* v, int i) {
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
      (int64_t{tile.image} * problem.height + tile.row) * cols;
  if (eight >= eights) return;
#pragma unroll 4
  for (int pixel = lane % 16; pixel < rows * cols; pixel += 16) {
    const float4 values =
        LoadShared4(window + pixel * 128 + ((eight ^ pixel % 8) << 4));
    e.signs[(first + pixel) * eights + eight] = SignsOf<T>(values);
  }
}

template <typename T, Contiguous kWeights, typename After>
__device__ __forceinline__ void MultiplyWindows(const WindowProblem& problem,
                                                const After& after, int group,
                                                uint32_t filter, uint32_t ring,
                                                WindowBarriers& barriers) {
  const WindowTiling& tiling = problem.tiling;
  const int step_h = (problem.taps_h.offset_step * tiling.width -
                      problem.taps_w.count * problem.taps_w.offset_step) *
                     8;
  const int step_w = problem.taps_w.offset_step * 8;  // in units of 16 bytes
  const int taps = problem.taps_h.count * problem.taps_w.count;
  const bool signals = threadIdx.x % 32 == 0;
  WindowChannels channels;
  if constexpr (After::kPresent) channels.Load<T>(after, problem.channels);
  ForWindows(problem, [&](const WindowTile& tile) {
    if (tile.turn % kConsumers != group) return;
    if (tile.turn > 0) {
      BarrierWait(SharedAddress(&barriers.turn[group]),
                  (tile.turn - 1) / kConsumers & 1);
    }
    const uint32_t window = ring + tile.stage * tiling.stage_bytes;
    auto multiply = [&](auto pixels) {
      constexpr int kPixels = decltype(pixels)::value;
      float acc[kPixels / 2];
#pragma unroll
      for (float& a : acc) a = 0.0f;
      BarrierWait(SharedAddress(&barriers.full[tile.stage]), tile.round);
      uint64_t a = Descriptor(filter), b = Descriptor(window);
      for (int tap = 0, s = 0; tap < taps; ++tap) {
        BarrierWait(SharedAddress(&barriers.filter[tap]), 0);
        WgmmaFence();
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          Wgmma<T, kWeights, Contiguous::kReduction, kPixels>(
              acc, a + k * kReductionStep<kWeights>,
              b + k * kReductionStep<Contiguous::kReduction>);
        }
        WgmmaCommit();
        if (tap + 1 == taps && signals) {
          BarrierArrive(SharedAddress(&barriers.turn[1 - group]));
        }
        WgmmaWait<1>();
        a += kBoxBytes >> 4;
        b += step_w;
        if (++s == problem.taps_w.count) {
          s = 0;
          b += step_h;
        }
      }
      WgmmaWait<0>();
      // Every warp's products have read the window.
      NamedBarrier(1 + group, kWarpgroup);
      if constexpr (After::kPresent) {
        WriteLayerWindow<T>(after, channels, acc, problem, tile, window);
      } else {
        WriteWindow(acc, problem, tile.rows, window, [](const float* v, int i) {
          return Pack<T>(v[2 * i], v[2 * i + 1]);
        });
      }
    };
    if (tile.rows == tiling.rows) {
      multiply(std::integral_constant<int, kWindowPixels>());
    } else {
      multiply(std::integral_constant<int, kWindowRowPixels>());
    }
    FenceAsyncProxy();
    __syncwarp();
    if (signals) BarrierArrive(SharedAddress(&barriers.written[tile.stage]));
  });
}

template <typename T, Contiguous kWeights, typename After>
__global__ void __launch_bounds__(kThreads, 1)
    WindowKernel(const __grid_constant__ WindowProblem problem,
                 const __grid_constant__ After after) {
  extern __shared__ __align__(1024) uint8_t memory[];
  const int filter_bytes =
      problem.taps_h.count * problem.taps_w.count * kBoxBytes;
  auto& barriers = *reinterpret_cast<WindowBarriers*>(
      memory + filter_bytes +
      problem.tiling.stages * problem.tiling.stage_bytes);
  const uint32_t filter = SharedAddress(memory);
  const uint32_t ring = filter + filter_bytes;
  // Each by a warp of its own.
  if (threadIdx.x == 64) {
    PrefetchMap(problem.input);
    PrefetchMap(problem.weights);
    PrefetchMap(problem.output);
  }
  if (threadIdx.x == 0) {
    barriers.InitFirst();
    LoadFirst(problem, filter, ring, barriers);
  }
  if (threadIdx.x == 96) barriers.Init();
  __syncthreads();

  const int warpgroup = threadIdx.x / kWarpgroup;
  if (warpgroup == 0) {
    GiveRegisters<kProducerRegisters>();
    if (threadIdx.x == 0) {
      LoadWindows(problem, ring, barriers);
    } else if (threadIdx.x == 64) {
      StoreWindows(problem, ring, barriers);
    }
  } else {
    TakeRegisters<kConsumerRegisters>();
    MultiplyWindows<T, kWeights>(problem, after, warpgroup - 1, filter, ring,
                                 barriers);
  }
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_WINDOW_KERNEL_CUH_
