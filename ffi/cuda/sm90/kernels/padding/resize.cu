// SPDX-License-Identifier: Apache-2.0
// Copies that add or leave out channels.
#include <cstdint>

#include "cuda/common/fast_divmod.h"
#include "cuda/sm90/kernels/padding/pad_plan.h"

namespace jax_convbatch::hopper {
namespace {

constexpr int kThreads = 256;

struct ResizeShape {
  FastDivmod<uint32_t> cols, rows;  // of the result
  uint32_t from_rows, from_cols;
  uint32_t size;  // of the result
  bool aligned;   // to 16 bytes
};

// A thread writes 16 bytes of the result.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    ResizeKernel(const __grid_constant__ ResizeShape shape,
                 const T* __restrict__ from, T* __restrict__ to) {
  constexpr int kVector = 16 / sizeof(T);
  const uint32_t first = (blockIdx.x * kThreads + threadIdx.x) * kVector;
  if (first >= shape.size) return;
  uint32_t outer = first;
  uint32_t col = TakeDigit(shape.cols, outer);
  uint32_t row = TakeDigit(shape.rows, outer);
  alignas(16) T values[kVector];
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    values[i] = T{0};
    if (first + i < shape.size && row < shape.from_rows &&
        col < shape.from_cols) {
      values[i] =
          __ldg(from + (outer * shape.from_rows + row) * shape.from_cols + col);
    }
    if (++col == shape.cols.divisor()) {
      col = 0;
      if (++row == shape.rows.divisor()) {
        row = 0;
        ++outer;
      }
    }
  }
  if (shape.aligned && first + kVector <= shape.size) {
    *reinterpret_cast<uint4*>(to + first) =
        *reinterpret_cast<const uint4*>(values);
    return;
  }
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    if (first + i < shape.size) to[first + i] = values[i];
  }
}

template <typename T>
cudaError_t Run(const Resizing& r, const void* from, void* to, Stage stage,
                cudaStream_t stream) {
  if (stage == Stage::kPrepare) {
    cudaFuncAttributes loads;
    return cudaFuncGetAttributes(&loads, &ResizeKernel<T>);
  }
  const int64_t size = r.outer * r.to_rows * r.to_cols;
  const ResizeShape shape = {FastDivmod<uint32_t>(r.to_cols),
                             FastDivmod<uint32_t>(r.to_rows),
                             static_cast<uint32_t>(r.from_rows),
                             static_cast<uint32_t>(r.from_cols),
                             static_cast<uint32_t>(size),
                             reinterpret_cast<uintptr_t>(to) % 16 == 0};
  constexpr int64_t kBlock = kThreads * (16 / sizeof(T));
  ResizeKernel<T>
      <<<static_cast<unsigned>((size + kBlock - 1) / kBlock), kThreads, 0,
         stream>>>(shape, static_cast<const T*>(from), static_cast<T*>(to));
  return cudaGetLastError();
}

}  // namespace

cudaError_t Resize(const Resizing& resizing, int element_bytes,
                   const void* from, void* to, Stage stage,
                   cudaStream_t stream) {
  return element_bytes == 4 ? Run<uint32_t>(resizing, from, to, stage, stream)
                            : Run<uint16_t>(resizing, from, to, stage, stream);
}

}  // namespace jax_convbatch::hopper
