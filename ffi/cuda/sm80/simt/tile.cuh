// SPDX-License-Identifier: Apache-2.0
// A tile of a matrix product on the ordinary cores: operands in a ring of
// stages in shared memory, filled by asynchronous copies, and the sums in
// registers.
#pragma once

#include <cstdint>

#include "cuda/sm80/simt/problem.h"

namespace jax_convbatch::simt {

// kThreadRows x kThreadCols sums a thread, 8 x 4 threads a warp, kWarpsM x
// kWarpsN warps, kBlocks blocks an SM.
template <int kWarpsM, int kWarpsN, int kThreadRows, int kThreadCols,
          int kBlocks>
struct Tile {
  static constexpr int kRows = kThreadRows, kCols = kThreadCols;
  static constexpr int kM = kWarpsM * 8 * kRows, kN = kWarpsN * 4 * kCols;
  static constexpr int kThreads = kWarpsM * kWarpsN * 32;
  static constexpr int kBlocksPerSm = kBlocks;
  static constexpr int kStages = 3;
  // Four floats more than there are, so that copies that transpose write to
  // different banks.
  static constexpr int kPitchA = kM + 4, kPitchB = kN + 4;
  static constexpr int kStageFloats = kDepth * (kPitchA + kPitchB);
  static constexpr int kSharedBytes = kStages * kStageFloats * 4;

  // Of the thread's first four rows and columns; others are 32 and 16 apart.
  // A quarter of a warp shares two addresses of an operand, so that its loads
  // take half as long.
  __device__ static int Row() {
    return threadIdx.x / 32 / kWarpsN * 8 * kRows + threadIdx.x / 2 % 8 * 4;
  }
  __device__ static int Col() {
    const int lane = threadIdx.x % 32;
    return threadIdx.x / 32 % kWarpsN * 4 * kCols +
           (lane % 2 + lane / 16 * 2) * 4;
  }
  __device__ static int Row(int i) { return Row() + i / 4 * 32 + i % 4; }
  __device__ static int Col(int j) { return Col() + j / 4 * 16 + j % 4; }
};

// By the names of plans, "128x128".
using LargeTile = Tile<2, 2, 8, 16, 2>;
using NarrowTile = Tile<2, 2, 8, 8, 3>;
using SmallTile = Tile<2, 2, 4, 8, 4>;

template <typename T>
struct Sums {
  float at[T::kRows][T::kCols];

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int i = 0; i < T::kRows; ++i) {
#pragma unroll
      for (int j = 0; j < T::kCols; ++j) at[i][j] = 0.0f;
    }
  }
};

template <typename T>
struct Fragments {
  float a[T::kRows], b[T::kCols];

  // `a` and `b`: where the thread's begin in a row of the stage.
  __device__ __forceinline__ void Load(const float* a_row, const float* b_row) {
#pragma unroll
    for (int i = 0; i < T::kRows; i += 4) {
      const float4 v = *reinterpret_cast<const float4*>(a_row + i * 8);
      a[i] = v.x, a[i + 1] = v.y, a[i + 2] = v.z, a[i + 3] = v.w;
    }
#pragma unroll
    for (int j = 0; j < T::kCols; j += 4) {
      const float4 v = *reinterpret_cast<const float4*>(b_row + j * 4);
      b[j] = v.x, b[j + 1] = v.y, b[j + 2] = v.z, b[j + 3] = v.w;
    }
  }
};

// Adds a stage's products, in order.
template <typename T>
__device__ __forceinline__ void Multiply(const float* stage, Sums<T>& sums) {
  const float* a = stage + T::Row();
  const float* b = stage + kDepth * T::kPitchA + T::Col();
  Fragments<T> fragments[2];
  fragments[0].Load(a, b);
#pragma unroll 4
  for (int k = 0; k < kDepth; ++k) {
    // The last load is of the next stage's first row, or past the ring's end
    // of nothing that is used.
    a += T::kPitchA;
    b += T::kPitchB;
    if (k + 1 < kDepth) fragments[(k + 1) % 2].Load(a, b);
    const Fragments<T>& f = fragments[k % 2];
#pragma unroll
    for (int i = 0; i < T::kRows; ++i) {
#pragma unroll
      for (int j = 0; j < T::kCols; ++j) {
        sums.at[i][j] = fmaf(f.a[i], f.b[j], sums.at[i][j]);
      }
    }
  }
}

inline __device__ uint32_t SharedAddress(const void* at) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(at));
}

// Zeros where `there` is 0.
inline __device__ void Copy4(uint32_t to, const float* from, unsigned there) {
  asm volatile(
      "{.reg .pred p; setp.eq.u32 p, %2, 0;"
      "cp.async.ca.shared.global [%0], [%1], 4, p;}" ::"r"(to),
      "l"(from), "r"(there));
}
inline __device__ void Copy16(uint32_t to, const float* from, unsigned there) {
  asm volatile(
      "{.reg .pred p; setp.eq.u32 p, %2, 0;"
      "cp.async.cg.shared.global [%0], [%1], 16, p;}" ::"r"(to),
      "l"(from), "r"(there));
}

// Hides from the compiler what a value is made of: an index to such a pointer
// is added by one multiply-add, a bit of such a mask takes one instruction.
inline __device__ const float* Opaque(const float* pointer) {
  asm volatile("" : "+l"(pointer));
  return pointer;
}
inline __device__ unsigned Opaque(unsigned mask) {
  asm volatile("" : "+r"(mask));
  return mask;
}
inline __device__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Runs the ring over `steps`: copy(stage) starts the next step's copies, and
// after(step) follows each step's products.
template <typename T, typename Copy, typename After>
__device__ __forceinline__ void RunStages(float* ring, int steps, Sums<T>& sums,
                                          Copy&& copy, After&& after) {
  int copied = 0, slot = 0, copy_slot = 0;
  auto copy_next = [&] {
    if (copied < steps) {
      copy(ring + copy_slot * T::kStageFloats);
      copy_slot = copy_slot + 1 == T::kStages ? 0 : copy_slot + 1;
      ++copied;
    }
    CommitCopies();
  };
#pragma unroll
  for (int i = 0; i < T::kStages - 1; ++i) copy_next();
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    WaitForCopies<T::kStages - 2>();
    __syncthreads();
    copy_next();
    Multiply<T>(ring + slot * T::kStageFloats, sums);
    slot = slot + 1 == T::kStages ? 0 : slot + 1;
    after(step);
  }
}

}  // namespace jax_convbatch::simt
