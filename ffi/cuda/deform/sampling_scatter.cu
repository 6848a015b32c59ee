// SPDX-License-Identifier: Apache-2.0
// The gradient of the sampled image: entries are sorted by the cell that they
// read, so that each pixel sums what it gave in one order, without atomics.
#include <cub/device/device_radix_sort.cuh>

#include "cuda/common/dtypes.h"
#include "cuda/common/kernel_shape.h"
#include "cuda/deform/sampling.h"
#include "cuda/deform/sampling_shape.cuh"

namespace jax_convbatch {
namespace {

constexpr int kThreads = 256;
// Input pixels of a block, and threads that share a pixel's channels.
constexpr Tile kTile{2, 4};
constexpr int kLanes = 32;
// Blocks of an SM, as in sampling.cu.
constexpr int kBlocks = 4;
// Entries that a thread has in flight.
constexpr int kUnroll = 4;

// Cells of all samples and offset groups are numbered through; entries that
// read nothing come last.
__global__ void __launch_bounds__(kThreads)
    KeysKernel(uint32_t entries, FastDivmod<uint32_t> tap_radix,
               FastDivmod<uint32_t> offset_group_radix,
               FastDivmod<uint32_t> output_radix, uint32_t cells_per_group,
               uint32_t none, const int32_t* __restrict__ cells,
               uint32_t* __restrict__ keys, uint32_t* __restrict__ values) {
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= entries) return;
  uint32_t rest = tap_radix.Divide(i);
  const uint32_t offset_group = TakeDigit(offset_group_radix, rest);
  const uint32_t sample = output_radix.Divide(rest);
  const uint32_t group = sample * offset_group_radix.divisor() + offset_group;
  const int32_t cell = cells[i];
  keys[i] = cell < 0 ? none : group * cells_per_group + cell;
  values[i] = i;
}

// Threads of the first `entries` put what an entry needs in its place; those
// up to `none` search where a cell's entries start.
template <typename A>
__global__ void __launch_bounds__(kThreads)
    PlaceKernel(uint32_t entries, uint32_t none, FastDivmod<uint32_t> tap_radix,
                FastDivmod<uint32_t> offset_group_radix,
                const uint32_t* __restrict__ keys,
                const uint32_t* __restrict__ values,
                const Vector<A, 4>* __restrict__ corners,
                int32_t* __restrict__ start, int32_t* __restrict__ rows,
                Vector<A, 4>* __restrict__ sorted_corners) {
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i < entries) {
    const uint32_t entry = values[i];
    uint32_t rest = entry;
    const uint32_t tap = TakeDigit(tap_radix, rest);
    const uint32_t output = offset_group_radix.Divide(rest);
    rows[i] = output * tap_radix.divisor() + tap;
    sorted_corners[i] = corners[entry];
  }
  if (i <= none) {
    uint32_t low = 0, high = entries;
    while (low < high) {
      const uint32_t middle = (low + high) / 2;
      if (keys[middle] < i) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    start[i] = low;
  }
}

// Adds the entries of two neighbouring cells, of which the pixel is corner
// `corner` and corner - 1.
template <typename A, int kVector>
__device__ void AddCells(const int32_t* __restrict__ start,
                         const int32_t* __restrict__ rows,
                         const Vector<A, 4>* __restrict__ corners, int corner,
                         const Vector<A, kVector>* __restrict__ columns,
                         int row_stride, A (&sum)[kVector]) {
  const int middle = start[1], end = start[2];
  for (int i = start[0]; i < end; i += kUnroll) {
    int at[kUnroll];
    A weight[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const bool there = i + u < end;
      const int entry = there ? i + u : i;
      at[u] = there ? rows[entry] * row_stride : -1;
      weight[u] = corners[entry].values[entry < middle ? corner : corner - 1];
    }
    Vector<A, kVector> read[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) read[u] = LoadOrZeros(columns, at[u]);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (at[u] < 0) weight[u] = 0;  // it may not be finite
#pragma unroll
      for (int v = 0; v < kVector; ++v) sum[v] += weight[u] * read[u].values[v];
    }
  }
}

template <typename T, int kVector>
__global__ void __launch_bounds__(kThreads, kBlocks)
    GatherKernel(const __grid_constant__ SamplingShape s,
                 const int32_t* __restrict__ start,
                 const int32_t* __restrict__ rows,
                 const Vector<Accumulator<T>, 4>* __restrict__ corners,
                 const Vector<Accumulator<T>, kVector>* __restrict__ columns,
                 Vector<T, kVector>* __restrict__ dx) {
  using A = Accumulator<T>;
  const BlockWork work(s, blockIdx.x);
  const int pixel = threadIdx.x / s.lanes, lane = threadIdx.x & (s.lanes - 1);
  const int h = work.h + pixel / s.tile.w, w = work.w + pixel % s.tile.w;
  if (h >= s.H || w >= s.W) return;
  const int across = s.W + 1;
  start += (int64_t{work.sample} * s.offset_groups + work.offset_group) *
               (s.H + 1) * across +
           h * across + w;
  dx += ((int64_t{work.sample} * s.H + h) * s.W + w) * s.channels;
  for (int i = work.part * s.lanes + lane; i < s.mine; i += s.parts * s.lanes) {
    const int c = work.offset_group * s.mine + i;
    const auto* mine = columns + InColumns(s, c);
    A sum[kVector] = {};
    AddCells(start, rows, corners, 3, mine, s.row, sum);
    AddCells(start + across, rows, corners, 1, mine, s.row, sum);
    Vector<T, kVector> result;
#pragma unroll
    for (int v = 0; v < kVector; ++v) result.values[v] = Convert<T>(sum[v]);
    dx[c] = result;
  }
}

template <typename T, int kVector>
cudaError_t Launch(cudaStream_t stream, const ConvGeometry& g,
                   const SortedEntries& sorted, int64_t offset_groups,
                   int64_t samples, const void* dcolumns, void* dx) {
  using A = Accumulator<T>;
  const SamplingShape shape(g, samples, offset_groups, kVector, /*inputs=*/true,
                            kTile, kLanes, /*most_parts=*/g.C);
  GatherKernel<T, kVector>
      <<<static_cast<unsigned>(shape.blocks),
         shape.tile.h * shape.tile.w * shape.lanes, 0, stream>>>(
          shape, sorted.start, sorted.row,
          static_cast<const Vector<A, 4>*>(sorted.corners),
          static_cast<const Vector<A, kVector>*>(dcolumns),
          static_cast<Vector<T, kVector>*>(dx));
  return cudaGetLastError();
}

int BitsOf(uint32_t largest) {
  int bits = 1;
  while (bits < 32 && largest >> bits) ++bits;
  return bits;
}

}  // namespace

cudaError_t SortEntries(cudaStream_t stream, const ConvGeometry& g,
                        const Sampling& at, int64_t samples,
                        xla::ffi::DataType dtype, const SortSpace& space,
                        const SortedEntries& sorted) {
  using Radix = FastDivmod<uint32_t>;
  const Radix tap_radix(g.taps()), offset_group_radix(at.offset_groups);
  const auto entries =
      static_cast<uint32_t>(Entries(g, at.offset_groups, samples));
  const auto none =
      static_cast<uint32_t>(samples * CellsPerSample(g, at.offset_groups));
  KeysKernel<<<Blocks(entries, kThreads), kThreads, 0, stream>>>(
      entries, tap_radix, offset_group_radix, Radix(g.output_pixels()),
      static_cast<uint32_t>((g.H + 1) * (g.W + 1)), none, at.positions.cells,
      space.keys[0], space.values[0]);
  if (cudaError_t status = cudaGetLastError()) return status;

  cub::DoubleBuffer<uint32_t> keys(space.keys[0], space.keys[1]);
  cub::DoubleBuffer<uint32_t> values(space.values[0], space.values[1]);
  const int count = static_cast<int>(entries), bits = BitsOf(none);
  size_t bytes = 0;
  cudaError_t status = cub::DeviceRadixSort::SortPairs(
      nullptr, bytes, keys, values, count, 0, bits, stream);
  if (status != cudaSuccess) return status;
  if (bytes > static_cast<size_t>(SortBytes(entries))) {
    return cudaErrorMemoryAllocation;
  }
  status = cub::DeviceRadixSort::SortPairs(space.temporary, bytes, keys, values,
                                           count, 0, bits, stream);
  if (status != cudaSuccess) return status;

  const unsigned blocks = Blocks(std::max(entries, none + 1), kThreads);
  auto place = [&](auto zero) {
    using A = decltype(zero);
    PlaceKernel<<<blocks, kThreads, 0, stream>>>(
        entries, none, tap_radix, offset_group_radix, keys.Current(),
        values.Current(),
        static_cast<const Vector<A, 4>*>(at.positions.corners), sorted.start,
        sorted.row, static_cast<Vector<A, 4>*>(sorted.corners));
  };
  if (dtype == xla::ffi::F64) {
    place(double{});
  } else {
    place(float{});
  }
  return cudaGetLastError();
}

cudaError_t GatherColumns(cudaStream_t stream, const ConvGeometry& g,
                          const SortedEntries& sorted, int64_t offset_groups,
                          int64_t samples, xla::ffi::DataType dtype,
                          const void* dcolumns, void* dx) {
  return DispatchDtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr int kVector = 16 / sizeof(Accumulator<T>);
    if (Vectorizes(g, offset_groups, kVector)) {
      return Launch<T, kVector>(stream, g, sorted, offset_groups, samples,
                                dcolumns, dx);
    }
    return Launch<T, 1>(stream, g, sorted, offset_groups, samples, dcolumns,
                        dx);
  });
}

}  // namespace jax_convbatch
