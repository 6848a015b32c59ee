// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "cuda/common/dependent_launch.cuh"
#include "cuda/common/dtypes.h"
#include "cuda/common/transpose.cuh"
#include "cuda/deform/sampling.h"
#include "cuda/deform/sampling_shape.cuh"
#include "cuda/select/hopper_device.h"

namespace jax_convbatch {
namespace {

// Outputs that a block samples at a time, and threads that share the channels
// of an entry.
constexpr int kThreads = 256;
constexpr Tile kTile{4, 4};
constexpr int kLanes = 32;
// Blocks of an SM: said, or the compiler saves registers and has one load in
// flight where there could be four.
constexpr int kBlocks = 4;
// Entries in shared memory: all of a tile for 3x3 filters.
constexpr int kEntries = 144;
// The same of CornerGrads: 128 bytes of channels at a time, so that the pixels
// of a tile stay in the first-level cache while all its entries read them. A
// thread keeps the sums of kOwn entries.
constexpr int kGradThreads = 128;
constexpr Tile kGradTile{2, 8};
constexpr int kGradLanes = 8;
constexpr int kOwn = 9;

// Where an entry reads: the 4 corners, in vectors from the sample's first
// channel, negative where there is no pixel; and its row of the columns,
// negative past the end.
struct Place {
  int4 pixels{-1, -1, -1, -1};
  int row = -1;
  int64_t index = 0;
  int h, w;
  uint32_t tap;

  // Of entry `i` of a tile, nowhere yet.
  __device__ Place(const SamplingShape& s, const BlockWork& work, uint32_t i) {
    tap = TakeDigit(s.tap_radix, i);
    h = work.h + i / s.tile.w, w = work.w + i % s.tile.w;
    if (i >= s.tile.h * s.tile.w || h >= s.h || w >= s.w) return;
    const int output = (work.sample * s.h + h) * s.w + w;
    row = (output * s.taps + tap) * s.row;
    index =
        (int64_t{output} * s.offset_groups + work.offset_group) * s.taps + tap;
  }

  // At the cell whose upper left pixel is (up, left).
  __device__ void Read(const SamplingShape& s, int up, int left) {
    const int at = (up * s.W + left) * s.channels, below = s.W * s.channels;
    const bool top = up >= 0, bottom = up < s.H - 1;
    const bool west = left >= 0, east = left < s.W - 1;
    if (top && west) pixels.x = at;
    if (top && east) pixels.y = at + s.channels;
    if (bottom && west) pixels.z = at + below;
    if (bottom && east) pixels.w = at + below + s.channels;
  }
};

template <typename A>
struct SampleTable {
  int4 pixels[kEntries];
  Vector<A, 4> weights[kEntries];
  int rows[kEntries];
};

// Columns are more than the L2 holds, and should not push the images out of it.
template <typename T, int kVector>
__device__ void StoreOnce(Vector<T, kVector>* to,
                          const Vector<T, kVector>& from) {
  if constexpr (sizeof(from) == 16) {
    uint4 bits;
    memcpy(&bits, &from, sizeof(bits));
    __stcs(reinterpret_cast<uint4*>(to), bits);
  } else {
    *to = from;
  }
}

// The columns of a tile, by all threads of a block.
template <typename T, int kVector>
__device__ __forceinline__ void SampleTile(const SamplingShape& s,
                                           const Positions& positions,
                                           const BlockWork& work,
                                           SampleTable<Accumulator<T>>& table,
                                           const Vector<T, kVector>* x,
                                           Vector<T, kVector>* columns) {
  using A = Accumulator<T>;
  const int lane = threadIdx.x & (s.lanes - 1);
  const int group = threadIdx.x / s.lanes, groups = kThreads / s.lanes;
  const int first_channel = work.offset_group * s.mine;
  x += int64_t{work.sample} * s.H * s.W * s.channels + first_channel;
  const int entries = s.tile.h * s.tile.w * s.taps;
  for (int first = 0; first < entries; first += kEntries) {
    const int count = min(entries - first, kEntries);
    __syncthreads();  // the table may still be read
    for (int i = threadIdx.x; i < count; i += kThreads) {
      Place place(s, work, first + i);
      if (place.row >= 0) {
        const auto at = PositionOf<T>(s.grid, positions, place.h, place.w,
                                      place.tap, place.index);
        if (at.inside) place.Read(s, at.h, at.w);
#pragma unroll
        for (int k = 0; k < 4; ++k) table.weights[i].values[k] = at.weights[k];
      }
      table.pixels[i] = place.pixels;
      table.rows[i] = place.row;
    }
    __syncthreads();
    for (int c = work.part * s.lanes + lane; c < s.mine;
         c += s.parts * s.lanes) {
      const auto* from = x + c;
      auto* to = columns + InColumns(s, first_channel + c);
#pragma unroll 2
      for (int i = group; i < count; i += groups) {
        const int4 pixels = table.pixels[i];
        const Vector<T, kVector> read[4] = {
            LoadOrZeros(from, pixels.x), LoadOrZeros(from, pixels.y),
            LoadOrZeros(from, pixels.z), LoadOrZeros(from, pixels.w)};
        const Vector<A, 4> weights = table.weights[i];
        Vector<T, kVector> result;
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          A sum{0};
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            sum += weights.values[k] * Convert<A>(read[k].values[v]);
          }
          result.values[v] = Convert<T>(sum);
        }
        const int row = table.rows[i];
        if (row >= 0) StoreOnce(to + row, result);
      }
    }
  }
}

// The first `squares` blocks transpose, the others take tiles in turns.
template <typename T, int kVector>
__global__ void __launch_bounds__(kThreads, kBlocks)
    SampleKernel(const __grid_constant__ SamplingShape s,
                 const __grid_constant__ Positions positions,
                 const __grid_constant__ Transposition matrix, int squares,
                 const Vector<T, kVector>* __restrict__ x,
                 Vector<T, kVector>* __restrict__ columns) {
  __shared__ SampleTable<Accumulator<T>> table;
  LaunchDependents();  // the product: column_gemm_kernel.cuh
  if (static_cast<int>(blockIdx.x) < squares) {
    static_assert(sizeof(table) >= kSquare * (kSquare + 1) * sizeof(float));
    TransposeSquare<kThreads>(matrix,
                              reinterpret_cast<float (*)[kSquare + 1]>(&table));
    return;
  }
  for (int64_t tile = blockIdx.x - squares; tile < s.blocks;
       tile += gridDim.x - squares) {
    SampleTile(s, positions, BlockWork(s, static_cast<uint32_t>(tile)), table,
               x, columns);
  }
}

// A group of lanes sums the products of its entries, each lane its vectors in
// order, then the lanes by halves.
template <typename T, int kVector>
__global__ void __launch_bounds__(kGradThreads, kBlocks) CornerGradsKernel(
    const __grid_constant__ SamplingShape s, const int32_t* __restrict__ cells,
    const Vector<T, kVector>* __restrict__ x,
    const Vector<Accumulator<T>, kVector>* __restrict__ dcolumns,
    Vector<Accumulator<T>, 4>* __restrict__ dcorners) {
  using A = Accumulator<T>;
  extern __shared__ int4 table[];  // pixels of kOwn entries a group, then rows
  const BlockWork work(s, blockIdx.x);
  const int lane = threadIdx.x & (s.lanes - 1);
  const int group = threadIdx.x / s.lanes, groups = kGradThreads / s.lanes;
  int* rows = reinterpret_cast<int*>(table + groups * kOwn);
  const int first_channel = work.offset_group * s.mine;
  x += int64_t{work.sample} * s.H * s.W * s.channels + first_channel;
  const int entries = s.tile.h * s.tile.w * s.taps;
  for (int first = 0; first < entries; first += groups * kOwn) {
    if (first > 0) __syncthreads();
    for (int i = threadIdx.x; i < groups * kOwn; i += kGradThreads) {
      Place place(s, work, first + i);
      if (place.row >= 0) {
        const Cell cell = CellAt(s.grid, cells[place.index]);
        if (cell.inside) place.Read(s, cell.h, cell.w);
      }
      table[i] = place.pixels;
      rows[i] = place.row;
    }
    __syncthreads();
    A sums[kOwn][4] = {};
    for (int c = lane; c < s.mine; c += s.lanes) {
      const auto* column = dcolumns + InColumns(s, first_channel + c);
#pragma unroll
      for (int j = 0; j < kOwn; ++j) {
        const int4 pixels = table[group + j * groups];
        const Vector<A, kVector> d =
            LoadOrZeros(column, rows[group + j * groups]);
        const Vector<T, kVector> read[4] = {
            LoadOrZeros(x + c, pixels.x), LoadOrZeros(x + c, pixels.y),
            LoadOrZeros(x + c, pixels.z), LoadOrZeros(x + c, pixels.w)};
#pragma unroll
        for (int k = 0; k < 4; ++k) {
#pragma unroll
          for (int v = 0; v < kVector; ++v) {
            sums[j][k] += d.values[v] * Convert<A>(read[k].values[v]);
          }
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      for (int step = s.lanes / 2; step > 0; step /= 2) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          sums[j][k] += __shfl_xor_sync(0xffffffff, sums[j][k], step);
        }
      }
      if (lane > 0) continue;
      const Place place(s, work, first + group + j * groups);
      if (place.row < 0) continue;
      // Nor does a column that is not finite show where no pixel is.
      const int4 at = table[group + j * groups];
      dcorners[place.index] = {
          at.x < 0 ? A{0} : sums[j][0], at.y < 0 ? A{0} : sums[j][1],
          at.z < 0 ? A{0} : sums[j][2], at.w < 0 ? A{0} : sums[j][3]};
    }
  }
}

// Calls launch(T, vector as a constant).
template <typename Launch>
cudaError_t Dispatch(const ConvGeometry& g, int64_t offset_groups,
                     xla::ffi::DataType dtype, Launch launch) {
  return DispatchDtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr int kVector = 16 / sizeof(T);
    if (Vectorizes(g, offset_groups, kVector)) {
      launch(tag, std::integral_constant<int, kVector>());
    } else {
      launch(tag, std::integral_constant<int, 1>());
    }
    return cudaGetLastError();
  });
}

}  // namespace

cudaError_t SampleColumns(cudaStream_t stream, const ConvGeometry& g,
                          const Sampling& at, int64_t samples,
                          xla::ffi::DataType dtype, const void* x,
                          void* columns, const Transposition& matrix) {
  int multiprocessors;
  const cudaError_t asked =
      DeviceAttribute(cudaDevAttrMultiProcessorCount, &multiprocessors);
  if (asked != cudaSuccess) return asked;
  const int64_t most_blocks = int64_t{kBlocks} * multiprocessors;
  return Dispatch(g, at.offset_groups, dtype, [&](auto tag, auto vector) {
    using T = typename decltype(tag)::type;
    constexpr int kVector = decltype(vector)::value;
    const SamplingShape shape(g, samples, at.offset_groups, kVector,
                              /*inputs=*/false, kTile, kLanes,
                              /*most_parts=*/g.C);
    const int64_t squares = matrix.to != nullptr ? Squares(matrix) : 0;
    const int64_t blocks = std::min(shape.blocks, most_blocks);
    SampleKernel<T, kVector>
        <<<static_cast<unsigned>(squares + blocks), kThreads, 0, stream>>>(
            shape, at.positions, matrix, static_cast<int>(squares),
            static_cast<const Vector<T, kVector>*>(x),
            static_cast<Vector<T, kVector>*>(columns));
  });
}

cudaError_t CornerGrads(cudaStream_t stream, const ConvGeometry& g,
                        const Sampling& at, int64_t samples,
                        xla::ffi::DataType dtype, const void* x,
                        const void* dcolumns, void* dcorners) {
  return Dispatch(g, at.offset_groups, dtype, [&](auto tag, auto vector) {
    using T = typename decltype(tag)::type;
    using A = Accumulator<T>;
    constexpr int kVector = decltype(vector)::value;
    const SamplingShape shape(g, samples, at.offset_groups, kVector,
                              /*inputs=*/false, kGradTile, kGradLanes,
                              /*most_parts=*/1);
    const int bytes = kGradThreads / shape.lanes * kOwn *
                      static_cast<int>(sizeof(int4) + sizeof(int));
    CornerGradsKernel<T, kVector>
        <<<static_cast<unsigned>(shape.blocks), kGradThreads, bytes, stream>>>(
            shape, at.positions.cells,
            static_cast<const Vector<T, kVector>*>(x),
            static_cast<const Vector<A, kVector>*>(dcolumns),
            static_cast<Vector<A, 4>*>(dcorners));
  });
}

}  // namespace jax_convbatch
