// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "cuda/common/floats.h"
#include "cuda/common/left_out.h"
#include "cuda/common/relu_bitmask.cuh"
#include "cuda/sm90/arch/launch.cuh"
#include "cuda/sm90/arch/ptx.cuh"
#include "cuda/sm90/kernels/fused_backward/relu_grad.h"

namespace jax_convbatch::hopper {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kVector = 8;           // elements of a load
constexpr int kMostRows = 8;         // of a thread
constexpr int64_t kFewBlocks = 528;  // four an SM

// A warp's lanes have neighbouring vectors of a row, `lanes` of them, and so
// many rows as remain; the block has kRows times its threads' rows.
struct Shape {
  int64_t rows;
  int vectors, lanes, tiles, thread_rows;

  Shape(int64_t rows, int64_t K)
      : rows(rows), vectors(static_cast<int>(K / kVector)) {
    lanes = vectors % 32 == 0 ? 32 : vectors % 16 == 0 ? 16 : 8;
    tiles = vectors / lanes;
    for (thread_rows = 2; thread_rows < kMostRows; thread_rows *= 2) {
      if (chunks() * tiles <= kFewBlocks) break;
    }
  }

  int64_t chunk_rows() const { return thread_rows * (kThreads / lanes); }
  int64_t chunks() const { return (rows + chunk_rows() - 1) / chunk_rows(); }
};

// Words of eight elements, zeros where y is not positive.
template <typename T>
__device__ __forceinline__ void MaskBy(uint4 y, uint32_t (&dy)[4]) {
  const uint32_t words[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const auto pair = reinterpret_cast<const Vector<T, 2>&>(words[i]);
    const uint32_t low =
        Convert<float>(pair.values[0]) > 0.0f ? 0x0000ffffu : 0u;
    const uint32_t high =
        Convert<float>(pair.values[1]) > 0.0f ? 0xffff0000u : 0u;
    dy[i] &= low | high;
  }
}

template <typename T>
__device__ __forceinline__ void MaskBy(uint8_t bitmask, uint32_t (&dy)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) dy[i] &= ReluMask<sizeof(T)>(bitmask, i);
}

// Saved: uint8_t for bitmask, uint4 for y.
template <typename T, typename Saved, int kRows>
__global__ void __launch_bounds__(kThreads)
    ReluGradKernel(const Saved* __restrict__ saved,
                   const uint4* __restrict__ dy, uint4* __restrict__ dz,
                   float* __restrict__ partials, int rows, int vectors,
                   int lanes, int tiles) {
  __shared__ float4 sums[kWarps][32][2];
  const int chunk = blockIdx.x / tiles;
  const int tile = blockIdx.x - chunk * tiles;
  const int lane = threadIdx.x % lanes;
  const int teams = kThreads / lanes;
  const int column = tile * lanes + lane;
  const int first = chunk * kRows * teams + threadIdx.x / lanes;
  uint4 loaded[kRows];
  Saved passes[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int row = first + i * teams;
    if (row < rows) {
      const int64_t at = int64_t{row} * vectors + column;
      loaded[i] = dy[at];
      passes[i] = saved[at];
    }
  }
  float sum[kVector] = {};
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int row = first + i * teams;
    if (row < rows) {
      uint32_t words[4] = {loaded[i].x, loaded[i].y, loaded[i].z, loaded[i].w};
      MaskBy<T>(passes[i], words);
      dz[int64_t{row} * vectors + column] =
          make_uint4(words[0], words[1], words[2], words[3]);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const auto pair = reinterpret_cast<const Vector<T, 2>&>(words[j]);
        sum[2 * j] += Convert<float>(pair.values[0]);
        sum[2 * j + 1] += Convert<float>(pair.values[1]);
      }
    }
  }
  LaunchDependents();
  for (int step = lanes; step < 32; step *= 2) {
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      sum[j] += __shfl_xor_sync(~0u, sum[j], step);
    }
  }
  const int warp = threadIdx.x / 32;
  if (threadIdx.x % 32 < lanes) {
    sums[warp][lane][0] = make_float4(sum[0], sum[1], sum[2], sum[3]);
    sums[warp][lane][1] = make_float4(sum[4], sum[5], sum[6], sum[7]);
  }
  __syncthreads();
  const int channels = lanes * kVector;
  if (threadIdx.x >= channels) return;
  float total = 0.0f;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) {
    total += reinterpret_cast<const float*>(sums[i])[threadIdx.x];
  }
  partials[int64_t{chunk} * vectors * kVector + tile * channels + threadIdx.x] =
      total;
}

constexpr int kSumThreads = 512, kSumColumns = 32;
constexpr int kSumTeams = kSumThreads / kSumColumns;

// Adds the chunks: a block has 32 channels, a team every so many chunks.
template <typename T>
__global__ void __launch_bounds__(kSumThreads)
    ReluGradSumsKernel(const float* __restrict__ partials, int chunks, int K,
                       T* __restrict__ db) {
  __shared__ float sums[kSumTeams][kSumColumns];
  const int column = threadIdx.x % kSumColumns;
  const int team = threadIdx.x / kSumColumns;
  const float* const from = partials + blockIdx.x * kSumColumns + column;
  WaitForPrimary();
  float sum = 0.0f;
#pragma unroll 8
  for (int chunk = team; chunk < chunks; chunk += kSumTeams) {
    sum += from[int64_t{chunk} * K];
  }
  sums[team][column] = sum;
  __syncthreads();
  if (team > 0) return;
#pragma unroll
  for (int i = 1; i < kSumTeams; ++i) sum += sums[i][column];
  db[blockIdx.x * kSumColumns + column] = Convert<T>(sum);
}

// Calls f(T()) with the type.
template <typename F>
cudaError_t ForType(Type type, F&& f) {
  if (type == Type::kBf16) return f(__nv_bfloat16());
  return f(__half());
}

template <typename Kernel>
cudaError_t Load(Kernel* kernel) {
  cudaFuncAttributes loads;
  return cudaFuncGetAttributes(&loads, kernel);
}

template <typename T, typename Saved, int kRows>
cudaError_t LaunchRows(const ReluGradCall& call, const Shape& shape,
                       Stage stage, cudaStream_t stream) {
  const auto kernel = &ReluGradKernel<T, Saved, kRows>;
  if (stage == Stage::kPrepare) return Load(kernel);
  kernel<<<static_cast<unsigned>(shape.chunks() * shape.tiles), kThreads, 0,
           stream>>>(
      static_cast<const Saved*>(call.saved), static_cast<const uint4*>(call.dy),
      static_cast<uint4*>(call.dz), call.partials, static_cast<int>(shape.rows),
      shape.vectors, shape.lanes, shape.tiles);
  return cudaGetLastError();
}

template <typename T, typename Saved>
cudaError_t Launch(const ReluGradCall& call, Stage stage, cudaStream_t stream) {
  const Shape shape(call.rows, call.K);
  switch (shape.thread_rows) {
    case 2:
      return LaunchRows<T, Saved, 2>(call, shape, stage, stream);
    case 4:
      return LaunchRows<T, Saved, 4>(call, shape, stage, stream);
    default:
      return LaunchRows<T, Saved, 8>(call, shape, stage, stream);
  }
}

}  // namespace

bool HasReluGrad(int64_t rows, int64_t K, Type type) {
  return !IsLeftOut(Family::kReluGrad) && type != Type::kTf32 && rows > 0 &&
         K > 0 && K % 64 == 0 &&
         1.0 * static_cast<double>(rows) * static_cast<double>(K) < INT32_MAX;
}

int64_t ReluGradPartials(int64_t rows, int64_t K) {
  return Shape(rows, K).chunks() * K;
}

cudaError_t ReluGrad(const ReluGradCall& call, Stage stage,
                     cudaStream_t stream) {
  return ForType(call.type, [&](auto tag) {
    using T = decltype(tag);
    return call.bitmask ? Launch<T, uint8_t>(call, stage, stream)
                        : Launch<T, uint4>(call, stage, stream);
  });
}

cudaError_t ReluGradSums(const ReluGradCall& call, Stage stage,
                         cudaStream_t stream) {
  return ForType(call.type, [&](auto tag) {
    using T = decltype(tag);
    const auto kernel = &ReluGradSumsKernel<T>;
    if (stage == Stage::kPrepare) return Load(kernel);
    const Shape shape(call.rows, call.K);
    return LaunchKernel(kernel,
                        {call.K / kSumColumns, kSumThreads, Start::kEarly},
                        stream, call.partials, static_cast<int>(shape.chunks()),
                        static_cast<int>(call.K), static_cast<T*>(call.db));
  });
}

}  // namespace jax_convbatch::hopper
