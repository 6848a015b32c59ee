// SPDX-License-Identifier: Apache-2.0
// Fills swizzled boxes of shared memory from global memory without TMA: by a
// warpgroup, 16 bytes of shared memory at a time.
#ifndef JAX_CONVBATCH_CUDA_SM90_COPY_CP_ASYNC_IM2COL_CUH_
#define JAX_CONVBATCH_CUDA_SM90_COPY_CP_ASYNC_IM2COL_CUH_

#include <algorithm>

#include "cuda/sm90/copy/pipeline.cuh"
#include "cuda/sm90/problem/cp_async_problem.h"

namespace jax_convbatch::hopper {

// Two warpgroups gather, one each operand; two multiply. 104 x 256 + 152 x 256
// registers: what an SM has.
inline constexpr int kCpAsyncThreads = 4 * kWarpgroup;
inline constexpr int kCpAsyncRegisters = 104;
inline constexpr int kCpAsyncConsumerRegisters = 152;

// A thread has one chunk of rows `tid / 8`, + 16, + 32, ...
inline constexpr int kRowStep = 16;
inline constexpr int kRowsOfBox = 64 / kRowStep;

// A row of a box: where its elements are counted from, and the image row and
// the element of it there.
struct CpAsyncRow {
  const uint16_t* at;
  int h, v;
};

// A chunk of a box: displaced from the row by `offset` elements, that is by h
// image rows and v elements; its elements [begin, end) belong to it.
struct CpAsyncChunk {
  int offset, h, v, begin, end;
};

__device__ __forceinline__ CpAsyncRow RowOfPixel(const CpAsyncSource& source,
                                                 const CpAsyncGrid& grid,
                                                 int channels, int pixel) {
  if (pixel >= grid.pixels) return {source.data, -(1 << 30), 0};
  uint32_t image = pixel;
  const int col = TakeDigit(grid.cols, image);
  const int row = TakeDigit(grid.rows, image);
  const int h = grid.base_h + row * grid.step_h;
  const int v = (grid.base_w + col * grid.step_w) * channels;
  return {source.data + (int64_t{image} * source.height + h) * source.width + v,
          h, v};
}

// Row `row` of a dense matrix.
__device__ __forceinline__ CpAsyncRow RowOfMatrix(const CpAsyncSource& source,
                                                  int row, bool valid) {
  return {source.data + int64_t{row} * source.width, valid ? 0 : -1, 0};
}

__device__ __forceinline__ CpAsyncChunk ChunkOfRuns(const CpAsyncSource& source,
                                                    const CpAsyncRuns& runs,
                                                    uint32_t chunk) {
  const uint32_t run = runs.chunks.Divide(chunk);
  const int u = int(chunk - run * runs.chunks.divisor()) * kChunk - runs.lead;
  const uint32_t i = runs.cols.Divide(run);
  const int h = int(i) * runs.step_h;
  const int v = int(run - i * runs.cols.divisor()) * runs.step_w + u;
  return {h * source.width + v, h, v, max(0, -u),
          int(run) < runs.count ? min(kChunk, runs.length - u) : 0};
}

// Elements from `v` on of a dense matrix's rows.
__device__ __forceinline__ CpAsyncChunk ChunkOfMatrix(int v) {
  return {v, 0, v, 0, kChunk};
}

// Waits for no more than kPending groups of this thread's copies.
template <int kPending>
__device__ __forceinline__ void CopyWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ __forceinline__ void CopyCommit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// kBytes, of which the first `bytes` come from memory and the rest are zeros.
template <int kBytes>
__device__ __forceinline__ void CopyAsync(uint32_t to, const void* from,
                                          int bytes) {
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to),
                 "l"(from), "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to),
                 "l"(from), "n"(kBytes), "r"(bytes)
                 : "memory");
  }
}

__device__ __forceinline__ void StoreShared(uint32_t to,
                                            const uint32_t (&v)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v[0]),
               "r"(v[1]), "r"(v[2]), "r"(v[3])
               : "memory");
}

// One chunk of kRows rows, asynchronously: loads are whole or nothing.
template <int kVector, int kRows>
__device__ __forceinline__ void CopyRows(uint32_t to,
                                         const CpAsyncRow (&rows)[kRows],
                                         const CpAsyncChunk& chunk,
                                         const CpAsyncSource& source) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int v = rows[r].v + chunk.v;
    const bool in_row = unsigned(rows[r].h + chunk.h) < unsigned(source.height);
    const uint16_t* from = rows[r].at + chunk.offset;
#pragma unroll
    for (int i = 0; i < kChunk; i += kVector) {
      const bool in =
          in_row && i < chunk.end && unsigned(v + i) < unsigned(source.width);
      CopyAsync<2 * kVector>(to + r * kRowStep * 128 + 2 * i,
                             in ? from + i : source.data, in ? 2 * kVector : 0);
    }
  }
}

template <int kVector>
struct LoadOf;
template <>
struct LoadOf<1> {
  using type = uint16_t;
};
template <>
struct LoadOf<2> {
  using type = uint32_t;
};
template <>
struct LoadOf<4> {
  using type = uint2;
};
template <>
struct LoadOf<8> {
  using type = uint4;
};

__device__ __forceinline__ void Unpack(uint4 v, uint32_t* to) {
  to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}
__device__ __forceinline__ void Unpack(uint2 v, uint32_t* to) {
  to[0] = v.x, to[1] = v.y;
}
__device__ __forceinline__ void Unpack(uint32_t v, uint32_t* to) { *to = v; }

// The same through registers, where elements must be left out of a load.
template <int kVector, int kRows>
__device__ __forceinline__ void LoadRows(uint32_t to, const CpAsyncRow* rows,
                                         const CpAsyncChunk& chunk,
                                         const CpAsyncSource& source) {
  using Load = typename LoadOf<kVector>::type;
  constexpr int kLoads = kChunk / kVector;
  Load loads[kRows][kLoads];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int v = rows[r].v + chunk.v;
    const bool in_row = chunk.end > chunk.begin &&
                        unsigned(rows[r].h + chunk.h) < unsigned(source.height);
    const Load* from = reinterpret_cast<const Load*>(rows[r].at + chunk.offset);
    if (in_row && v >= 0 && v + kChunk <= source.width) {
#pragma unroll
      for (int i = 0; i < kLoads; ++i) loads[r][i] = __ldg(from + i);
    } else {
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        loads[r][i] = Load{};
        if (in_row && unsigned(v + i * kVector) < unsigned(source.width)) {
          loads[r][i] = __ldg(from + i);
        }
      }
    }
  }
  uint32_t mask[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    auto used = [&](int e) { return chunk.begin <= e && e < chunk.end; };
    mask[i] = (used(2 * i) ? 0xFFFFu : 0) | (used(2 * i + 1) ? ~0xFFFFu : 0);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    uint32_t words[4];
    if constexpr (kVector == 1) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        words[i] = __byte_perm(loads[r][2 * i], loads[r][2 * i + 1], 0x5410);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        Unpack(loads[r][i], words + i * (kVector / 2));
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] &= mask[i];
    StoreShared(to + r * kRowStep * 128, words);
  }
}

// One chunk of kRows rows from `to` on; a multiple of 4 rows.
template <int kRows>
__device__ __forceinline__ void CpAsyncRows(uint32_t to,
                                            const CpAsyncRow (&rows)[kRows],
                                            const CpAsyncChunk& chunk,
                                            const CpAsyncSource& source) {
  if (!source.masked) {
    switch (source.vector) {
      case 8:
        return CopyRows<8>(to, rows, chunk, source);
      case 4:
        return CopyRows<4>(to, rows, chunk, source);
      case 2:
        return CopyRows<2>(to, rows, chunk, source);
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; r += 4) {
    const uint32_t at = to + r * kRowStep * 128;
    switch (source.vector) {
      case 8:
        LoadRows<8, 4>(at, rows + r, chunk, source);
        break;
      case 4:
        LoadRows<4, 4>(at, rows + r, chunk, source);
        break;
      case 2:
        LoadRows<2, 4>(at, rows + r, chunk, source);
        break;
      default:
        LoadRows<1, 4>(at, rows + r, chunk, source);
    }
  }
}

// Where a thread's chunk lies in a box.
__device__ __forceinline__ uint32_t ChunkAddress(int thread) {
  const int row = thread / kChunk;
  return row * 128 + ((thread % kChunk ^ row % 8) << 4);
}

// The arrivals of a warp that has stored to a stage or loaded from it: one lane
// arrives for it. racecheck follows only threads that arrive themselves; all do
// in a build with JAX_CONVBATCH_RACECHECK.
#ifdef JAX_CONVBATCH_RACECHECK
inline constexpr int kWarpArrivals = 32;
#else
inline constexpr int kWarpArrivals = 1;
#endif

__device__ __forceinline__ void WarpArrive(int lane, uint32_t barrier) {
  if (kWarpArrivals > 1 || lane == 0) BarrierArrive(barrier);
}

// A gathering warpgroup's side of the ring: a stage is handed on kLag stages
// later, when its copies have arrived, so that those of kLag stages are under
// way. kStages > kLag.
template <int kStages, int kLag = 3>
class CpAsyncRing {
 public:
  __device__ explicit CpAsyncRing(RingBarriers<kStages>& barriers)
      : barriers_(barriers) {}

  // The stage to fill next, once it is empty.
  __device__ __forceinline__ int Next() {
    BarrierWait(SharedAddress(&barriers_.empty[at_.stage]), at_.round ^ 1);
    return at_.stage;
  }

  // The stage is filled, or will be when its copies arrive.
  __device__ __forceinline__ void Commit() {
    CopyCommit();
    if (filled_ >= kLag) {
      CopyWait<kLag>();
      HandOn();
    } else {
      ++filled_;
    }
    at_.Advance();
  }

  __device__ void Finish() {
    CopyWait<0>();
    for (int i = 0; i < filled_; ++i) HandOn();
  }

 private:
  __device__ __forceinline__ void HandOn() {
    FenceAsyncProxy();
    __syncwarp();
    WarpArrive(threadIdx.x % 32, SharedAddress(&barriers_.full[done_.stage]));
    done_.Advance();
  }

  RingBarriers<kStages>& barriers_;
  RingPosition<kStages> at_, done_;
  int filled_ = 0;
  static_assert(kStages > kLag);
};

// Arrivals that fill a stage: of the warps that gather.
inline constexpr int kCpAsyncArrivals = 2 * kWarpgroup / 32 * kWarpArrivals;

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_COPY_CP_ASYNC_IM2COL_CUH_
