// SPDX-License-Identifier: Apache-2.0
// Transposes a matrix, a square of it a block.
#pragma once

#include <cstdint>

#include "cuda/common/transposition.h"

namespace jax_convbatch {

inline constexpr int kSquare = 32;

inline int64_t Squares(const Transposition& matrix) {
  auto squares = [](int n) { return (n + kSquare - 1) / kSquare; };
  return int64_t{squares(matrix.rows)} * squares(matrix.columns);
}

// Square blockIdx.x, by all kThreads threads of a block.
template <int kThreads>
__device__ __forceinline__ void TransposeSquare(const Transposition& matrix,
                                                float (*square)[kSquare + 1]) {
  const int across = (matrix.columns + kSquare - 1) / kSquare;
  const int row = blockIdx.x / across * kSquare;
  const int column = blockIdx.x % across * kSquare;
  const int x = threadIdx.x % kSquare;
#pragma unroll
  for (int y = threadIdx.x / kSquare; y < kSquare; y += kThreads / kSquare) {
    if (row + y < matrix.rows && column + x < matrix.columns) {
      square[y][x] =
          matrix.from[int64_t{row + y} * matrix.columns + column + x];
    }
  }
  __syncthreads();
#pragma unroll
  for (int y = threadIdx.x / kSquare; y < kSquare; y += kThreads / kSquare) {
    if (row + x < matrix.rows && column + y < matrix.columns) {
      matrix.to[int64_t{column + y} * matrix.rows + row + x] = square[x][y];
    }
  }
}

}  // namespace jax_convbatch
