#include "cuda/dtypes.h"
#include "cuda/sampling.h"
#include "cuda/sampling_shape.cuh"

namespace jax_convbatch {
namespace {

constexpr int kThreads = 256;
// Outputs of a block, and threads that share the channels of an entry.
constexpr Tile kTile{4, 8};
constexpr int kLanes = 8;

// What a block reads, an entry a thread: the pixels of the 4 corners, -1 where
// there is none, their weights, and the row of the columns, -1 past the end.
template <typename A>
struct Table {
  int4 pixels[kThreads];
  Vector<A, 4> weights[kThreads];
  int rows[kThreads];
};

// The entry that `i` stands for in a tile, -1 where there is none, and its row.
struct Entry {
  int64_t index;
  int row;

  __device__ Entry(const SamplingShape& s, const BlockWork& work, uint32_t i)
      : index(-1), row(-1) {
    const uint32_t tap = TakeDigit(s.tap_radix, i);
    const int h = work.h + i / s.tile.w, w = work.w + i % s.tile.w;
    if (i >= s.tile.h * s.tile.w || h >= s.h || w >= s.w) return;
    const int output = (work.sample * s.h + h) * s.w + w;
    row = output * s.taps + tap;
    index =
        (int64_t{output} * s.offset_groups + work.offset_group) * s.taps + tap;
  }
};

// The pixels of a cell's 4 corners.
__device__ int4 CornersOf(const SamplingShape& s, int cell) {
  if (cell < 0) return {-1, -1, -1, -1};
  const int up = static_cast<int>(s.cell_width.Divide(cell)) - 1;
  const int left = cell - (up + 1) * (s.W + 1) - 1;
  const int at = up * s.W + left;
  const bool top = up >= 0, bottom = up < s.H - 1;
  const bool west = left >= 0, east = left < s.W - 1;
  return {top && west ? at : -1, top && east ? at + 1 : -1,
          bottom && west ? at + s.W : -1, bottom && east ? at + s.W + 1 : -1};
}

template <typename T, int kVector>
__device__ Vector<T, kVector> Load(const Vector<T, kVector>* x, int pixel,
                                   int64_t channels) {
  Vector<T, kVector> zeros{};
  return pixel < 0 ? zeros : x[pixel * channels];
}

template <typename T, int kVector>
__global__ void __launch_bounds__(kThreads)
    SampleKernel(const __grid_constant__ SamplingShape s,
                 const int32_t* __restrict__ cells,
                 const Vector<Accumulator<T>, 4>* __restrict__ corners,
                 const Vector<T, kVector>* __restrict__ x,
                 Vector<T, kVector>* __restrict__ columns) {
  using A = Accumulator<T>;
  __shared__ Table<A> table;
  const BlockWork work(s);
  const uint32_t lane = threadIdx.x & (s.lanes - 1);
  const uint32_t in_group = work.chunk * s.lanes + lane;
  const uint32_t c = work.offset_group * s.mine + in_group;
  x += int64_t{work.sample} * s.H * s.W * s.channels + c;
  columns += InColumns(s, c);
  const int entries = s.tile.h * s.tile.w * s.taps;
  for (int first = 0; first < entries; first += kThreads) {
    const Entry entry(s, work, first + threadIdx.x);
    if (first > 0) __syncthreads();
    table.rows[threadIdx.x] = entry.row;
    if (entry.row >= 0) {
      table.pixels[threadIdx.x] = CornersOf(s, cells[entry.index]);
      table.weights[threadIdx.x] = corners[entry.index];
    }
    __syncthreads();
    if (in_group >= s.mine) continue;
    const int count = min(entries - first, kThreads);
#pragma unroll 2
    for (int i = threadIdx.x / s.lanes; i < count; i += kThreads / s.lanes) {
      const int row = table.rows[i];
      if (row < 0) continue;
      const int4 pixels = table.pixels[i];
      const Vector<A, 4> weights = table.weights[i];
      const Vector<T, kVector> read[4] = {
          Load(x, pixels.x, s.channels), Load(x, pixels.y, s.channels),
          Load(x, pixels.z, s.channels), Load(x, pixels.w, s.channels)};
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
      columns[row * s.row] = result;
    }
  }
}

// A group of lanes sums the products of an entry, each lane its vectors in
// order, then the lanes by halves.
template <typename T, int kVector>
__global__ void __launch_bounds__(kThreads) CornerGradsKernel(
    const __grid_constant__ SamplingShape s, const int32_t* __restrict__ cells,
    const Vector<T, kVector>* __restrict__ x,
    const Vector<Accumulator<T>, kVector>* __restrict__ dcolumns,
    Vector<Accumulator<T>, 4>* __restrict__ dcorners) {
  using A = Accumulator<T>;
  __shared__ int4 table[kThreads];
  const BlockWork work(s);
  const uint32_t lane = threadIdx.x & (s.lanes - 1);
  const uint32_t first_channel = work.offset_group * s.mine;
  x += int64_t{work.sample} * s.H * s.W * s.channels + first_channel;
  const int entries = s.tile.h * s.tile.w * s.taps;
  for (int first = 0; first < entries; first += kThreads) {
    const Entry own(s, work, first + threadIdx.x);
    if (first > 0) __syncthreads();
    if (own.row >= 0) table[threadIdx.x] = CornersOf(s, cells[own.index]);
    __syncthreads();
    // The shuffles want whole warps in every turn.
    for (int i = threadIdx.x / s.lanes; i - threadIdx.x / s.lanes < kThreads;
         i += kThreads / s.lanes) {
      const Entry entry(s, work, first + i);
      A sums[4] = {};
      if (entry.row >= 0) {
        const int4 pixels = table[i];
        const auto* column = dcolumns + entry.row * s.row;
        for (uint32_t c = lane; c < s.mine; c += s.lanes) {
          const Vector<A, kVector> d = column[InColumns(s, first_channel + c)];
          const Vector<T, kVector> read[4] = {
              Load(x + c, pixels.x, s.channels),
              Load(x + c, pixels.y, s.channels),
              Load(x + c, pixels.z, s.channels),
              Load(x + c, pixels.w, s.channels)};
#pragma unroll
          for (int k = 0; k < 4; ++k) {
#pragma unroll
            for (int v = 0; v < kVector; ++v) {
              sums[k] += d.values[v] * Convert<A>(read[k].values[v]);
            }
          }
        }
        // Nor does a column that is not finite show where no pixel is.
        if (pixels.x < 0) sums[0] = 0;
        if (pixels.y < 0) sums[1] = 0;
        if (pixels.z < 0) sums[2] = 0;
        if (pixels.w < 0) sums[3] = 0;
      }
      for (int step = s.lanes / 2; step > 0; step /= 2) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          sums[k] += __shfl_xor_sync(0xffffffff, sums[k], step);
        }
      }
      if (lane == 0 && entry.row >= 0) {
        dcorners[entry.index] = {sums[0], sums[1], sums[2], sums[3]};
      }
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
                          void* columns) {
  return Dispatch(g, at.offset_groups, dtype, [&](auto tag, auto vector) {
    using T = typename decltype(tag)::type;
    constexpr int kVector = decltype(vector)::value;
    const SamplingShape shape(g, samples, at.offset_groups, kVector,
                              /*inputs=*/false, kTile, kLanes,
                              /*chunked=*/true);
    SampleKernel<T, kVector>
        <<<static_cast<unsigned>(shape.blocks), kThreads, 0, stream>>>(
            shape, at.cells,
            static_cast<const Vector<Accumulator<T>, 4>*>(at.corners),
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
                              /*inputs=*/false, kTile, kLanes,
                              /*chunked=*/false);
    CornerGradsKernel<T, kVector>
        <<<static_cast<unsigned>(shape.blocks), kThreads, 0, stream>>>(
            shape, at.cells, static_cast<const Vector<T, kVector>*>(x),
            static_cast<const Vector<A, kVector>*>(dcolumns),
            static_cast<Vector<A, 4>*>(dcorners));
  });
}

}  // namespace jax_convbatch
