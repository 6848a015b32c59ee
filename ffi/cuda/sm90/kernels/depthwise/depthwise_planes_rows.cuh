// SPDX-License-Identifier: Apache-2.0
// Rows of images on their way from memory, pixel by pixel, to planes of shared
// memory, one for each channel.
#pragma once

#include "cuda/common/floats.h"
#include "cuda/sm80/direct/mma.cuh"
#include "cuda/sm80/direct/staging.cuh"
#include "cuda/sm90/kernels/depthwise/depthwise_planes_problem.h"

namespace jax_convbatch::direct {

__device__ inline void StoreMatrices(uint32_t row, const uint32_t (&from)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
          row),
      "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
      : "memory");
}
__device__ inline void StoreTransposed(uint32_t row, const uint4& from) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, "
      "%4};" ::"r"(row),
      "r"(from.x), "r"(from.y), "r"(from.z), "r"(from.w)
      : "memory");
}

template <typename T>
__device__ inline uint32_t PackPair(float low, float high) {
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
}

// A segment's image and its first column of outputs.
struct SegmentPlace {
  int sample, col;

  template <typename Problem>
  __device__ SegmentPlace(const Problem& p, uint32_t segment) {
    col = TakeDigit(p.across, segment) * p.runs * Planes::kRun;
    sample = static_cast<int>(segment);
  }
};

// A worker's rows of one group.
struct Piece {
  int group, row, rows;

  // From row `at` of all groups on, before `end`.
  template <typename Problem>
  __device__ Piece(const Problem& p, int at, int end) {
    uint32_t rest = at;
    row = TakeDigit(p.height, rest);
    group = static_cast<int>(rest);
    rows = min(static_cast<int>(p.height.divisor()) - row, end - at);
  }
};

// A thread's part of copying a worker's rows, some steps ahead of their use:
// eight channels of a pixel of each of kCopies runs. Of each piece there are
// kTaps - 1 steps more than rows of outputs; past what is needed they bring
// zeros.
template <typename T, int kTaps, int kCopies, typename Problem>
class RowCopies {
 public:
  __device__ RowCopies(const Problem& p, const PlanesRows& rows, char* raw,
                       int first_channel, int worker)
      : p_(p), rows_(rows), to_(raw + threadIdx.x * 16) {
    at_ = worker * p.rows;
    end_ = min(at_ + p.rows, p.all_rows);
    channel_ = first_channel + threadIdx.x % 4 * 8;
    Enter();
  }

  // Starts to copy the next row into `stage`.
  __device__ void Next(int stage) {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const bool inside =
          static_cast<unsigned>(row_[i]) < height_[i] && step_ < needed_;
      CopyAsync16(to_ + (stage * kCopies + i) * Planes::kRawBytes, from_[i],
                  inside);
      from_[i] += rows_.width * p_.channels;
      ++row_[i];
    }
    if (++step_ == steps_) Enter();
  }

 private:
  // The first row of a piece, or nothing more.
  __device__ void Enter() {
    const bool some = at_ < end_;
    const Piece piece(p_, some ? at_ : 0, some ? end_ : 1);
    at_ += piece.rows;
    step_ = 0;
    needed_ = some ? piece.rows + rows_.halo : 0;
    steps_ = piece.rows + kTaps - 1;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int run = threadIdx.x / 32 + i * Planes::kWarps;
      const int of_group = run / rows_.runs;
      const int segment = piece.group * p_.segments + of_group;
      const bool exists = of_group < p_.segments && segment < p_.all_segments;
      const SegmentPlace place(p_, exists ? segment : 0);
      const int col = place.col + rows_.origin_w +
                      run % rows_.runs * Planes::kRun + threadIdx.x % 32 / 4;
      row_[i] = piece.row + rows_.origin_h;
      const bool inside = exists && static_cast<unsigned>(col) < rows_.width &&
                          channel_ < p_.channels;
      height_[i] = inside ? rows_.height : 0;
      from_[i] =
          static_cast<const T*>(rows_.data) +
          ((int64_t{place.sample} * rows_.height + row_[i]) * rows_.width +
           col) *
              p_.channels +
          channel_;
    }
  }

  const Problem& p_;
  const PlanesRows& rows_;
  char* to_;
  int at_, end_, channel_, step_, needed_, steps_;
  int row_[kCopies];
  unsigned height_[kCopies];
  const T* from_[kCopies];
};

// What this thread has copied into `stage`, to the planes of a row.
template <int kCopies>
__device__ void ToPlanes(const char* raw, int stage, uint32_t planes) {
#pragma unroll
  for (int i = 0; i < kCopies; ++i) {
    StoreTransposed(planes + i * Planes::kRuns * Planes::kRunBytes,
                    *reinterpret_cast<const uint4*>(
                        raw + (stage * kCopies + i) * Planes::kRawBytes +
                        threadIdx.x * 16));
  }
}

__device__ inline void Advance(int& stage) {
  stage = stage == Planes::kStages - 1 ? 0 : stage + 1;
}

}  // namespace jax_convbatch::direct
