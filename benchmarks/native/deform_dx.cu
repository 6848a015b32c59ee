// SPDX-License-Identifier: Apache-2.0
// What a deterministic gradient of the sampled image costs: ours, sorted
// entries that each pixel gathers, beside atomic additions of each entry to its
// four pixels. From the repository's root, on a GPU of compute capability 9.0:
//
//   nvcc -O3 -std=c++17 -gencode arch=compute_90a,code=sm_90a -Iffi
//     -I"$(python -c 'import jax; print(jax.ffi.include_dir())')"
//     -o deform_dx benchmarks/native/deform_dx.cu ffi/cuda/deform/sampling_scatter.cu
//     ffi/cuda/cublas/conv_gemms.cc ffi/cuda/cublas/cublas.cc -lcublasLt && ./deform_dx
//
// f32, 3x3 filters, offsets of one pixel's deviation. Microseconds of a launch,
// many in flight.
#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <vector>

#include "cuda/deform/sampling.h"

namespace {

using jax_convbatch::ConvGeometry;

#define CHECK(...)                                                        \
  do {                                                                    \
    const cudaError_t status = (__VA_ARGS__);                             \
    if (status != cudaSuccess) {                                          \
      std::printf("line %d: %s\n", __LINE__, cudaGetErrorString(status)); \
      std::exit(1);                                                       \
    }                                                                     \
  } while (0)

template <typename T>
T* Device(int64_t count) {
  T* p;
  CHECK(cudaMalloc(&p, count * sizeof(T)));
  return p;
}

template <typename T>
T* Device(const std::vector<T>& values) {
  T* p = Device<T>(values.size());
  CHECK(cudaMemcpy(p, values.data(), values.size() * sizeof(T),
                   cudaMemcpyHostToDevice));
  return p;
}

__global__ void Fill(float* p, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  uint32_t hash = static_cast<uint32_t>(i) * 2654435761u;
  hash = (hash ^ hash >> 15) * 2246822519u;
  p[i] = (hash >> 16) / 32768.f - 1;
}

// One thread kVector channels of an entry. As torchvision does with one channel
// a thread; vectors of four are an instruction of Hopper's.
template <int kVector>
__global__ void Scatter(int64_t entries, int C, int H, int W, int per_sample,
                        const int* cells, const float4* corners,
                        const float* columns, float* dx) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t entry = i / (C / kVector);
  if (entry >= entries || cells[entry] < 0) return;
  const int c = i % (C / kVector) * kVector;
  const int up = cells[entry] / (W + 1) - 1, left = cells[entry] % (W + 1) - 1;
  const float4 all = corners[entry];
  const float weights[4] = {all.x, all.y, all.z, all.w};
  for (int k = 0; k < 4; ++k) {
    const int h = up + k / 2, w = left + k % 2;
    if (h < 0 || h >= H || w < 0 || w >= W) continue;
    float* to = dx + ((entry / per_sample * H + h) * W + w) * C + c;
    float values[kVector];
    for (int v = 0; v < kVector; ++v) {
      values[v] = weights[k] * columns[entry * C + c + v];
    }
    if constexpr (kVector == 4) {
      asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to),
                   "f"(values[0]), "f"(values[1]), "f"(values[2]),
                   "f"(values[3])
                   : "memory");
    } else {
      atomicAdd(to, values[0]);
    }
  }
}

float Microseconds(const std::function<void()>& launch) {
  constexpr int kTurns = 20;
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  for (int i = 0; i < 3; ++i) launch();
  CHECK(cudaEventRecord(begin));
  for (int i = 0; i < kTurns; ++i) launch();
  CHECK(cudaEventRecord(end));
  CHECK(cudaEventSynchronize(end));
  float milliseconds;
  CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
  return 1000 * milliseconds / kTurns;
}

double Error(const float* a, const float* b, int64_t count) {
  std::vector<float> x(count), y(count);
  CHECK(cudaMemcpy(x.data(), a, 4 * count, cudaMemcpyDeviceToHost));
  CHECK(cudaMemcpy(y.data(), b, 4 * count, cudaMemcpyDeviceToHost));
  double error = 0, size = 0;
  for (int64_t i = 0; i < count; ++i) {
    error += std::pow(double{x[i]} - y[i], 2);
    size += std::pow(double{y[i]}, 2);
  }
  return std::sqrt(error / size);
}

void Measure(const char* name, int64_t N, int64_t H, int64_t W, int64_t C) {
  ConvGeometry g{N, 1, H, W, C, C, 1, 3, 3, 1, H, W, 1};
  g.stride = g.input_dilation = g.filter_dilation = {1, 1, 1};
  g.pad = {0, 1, 1};
  const int64_t entries = jax_convbatch::Entries(g, 1, N);
  std::vector<int> cells(entries, -1);
  std::vector<float> corners(4 * entries);
  std::mt19937 random(0);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < entries; ++i) {
    const int64_t tap = i % 9, output = i / 9;
    const float h = output / W % H - 1 + tap / 3 + normal(random);
    const float w = output % W - 1 + tap % 3 + normal(random);
    if (!(h >= -1 && h < H && w >= -1 && w < W)) continue;
    const float up = std::floor(h), left = std::floor(w);
    cells[i] = (up + 1) * (W + 1) + left + 1;
    for (int k = 0; k < 4; ++k) {
      corners[4 * i + k] =
          (k / 2 ? h - up : 1 - h + up) * (k % 2 ? w - left : 1 - w + left);
    }
  }
  const jax_convbatch::Sampling at{Device(cells), Device(corners), 1};
  float* columns = Device<float>(entries * C);
  Fill<<<(entries * C + 255) / 256, 256>>>(columns, entries * C);
  float *ours = Device<float>(g.x_size()), *atomics = Device<float>(g.x_size());
  jax_convbatch::SortedEntries sorted{
      Device<int>(N * jax_convbatch::CellsPerSample(g, 1) + 1),
      Device<int>(entries), Device<float>(4 * entries)};
  jax_convbatch::SortSpace space;
  for (int i = 0; i < 2; ++i) {
    space.keys[i] = Device<uint32_t>(entries);
    space.values[i] = Device<uint32_t>(entries);
  }
  space.temporary = Device<char>(jax_convbatch::SortBytes(entries));

  const float sort = Microseconds([&] {
    CHECK(jax_convbatch::SortEntries(nullptr, g, at, N, xla::ffi::F32, space,
                                     sorted));
  });
  const float gather = Microseconds([&] {
    CHECK(jax_convbatch::GatherColumns(nullptr, g, sorted, 1, N, xla::ffi::F32,
                                       columns, ours));
  });
  auto scatter = [&](auto vector) {
    constexpr int kVector = decltype(vector)::value;
    return Microseconds([&] {
      CHECK(cudaMemsetAsync(atomics, 0, 4 * g.x_size()));
      Scatter<kVector><<<(entries * C / kVector + 255) / 256, 256>>>(
          entries, C, H, W, H * W * 9, at.cells,
          static_cast<const float4*>(at.corners), columns, atomics);
    });
  };
  const float vectors = scatter(std::integral_constant<int, 4>());
  const float scalars = scatter(std::integral_constant<int, 1>());
  std::printf("%-16s %8.1f %8.1f %8.1f %8.1f %10.1e\n", name, sort, gather,
              vectors, scalars, Error(ours, atomics, g.x_size()));
}

}  // namespace

int main() {
  std::printf("%-16s %8s %8s %8s %8s %10s\n", "", "sort", "gather", "atomic x4",
              "atomic", "difference");
  Measure("6x19x34x512", 6, 19, 34, 512);
  Measure("8x56x56x256", 8, 56, 56, 256);
  Measure("8x56x56x64", 8, 56, 56, 64);
  Measure("64x28x28x128", 64, 28, 28, 128);
}
