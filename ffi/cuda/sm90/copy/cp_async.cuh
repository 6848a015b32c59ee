// SPDX-License-Identifier: Apache-2.0
// Shared memory filled without TMA: copies that threads issue, and the ring of
// stages that they fill.
#pragma once

#include "cuda/sm90/copy/pipeline.cuh"

namespace jax_convbatch::hopper {

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

// The side of the ring of a warpgroup that fills stages by such copies. A stage
// is handed on when its own have arrived.
template <int kStages>
class CpAsyncRing {
 public:
  __device__ explicit CpAsyncRing(RingBarriers<kStages>& barriers)
      : barriers_(barriers) {}

  // The stage to fill next, once it is empty.
  __device__ __forceinline__ int Next() {
    BarrierWait(SharedAddress(&barriers_.empty[at_.stage]), at_.round ^ 1);
    return at_.stage;
  }

  // The stage is filled when this thread's copies arrive.
  __device__ __forceinline__ void Commit() {
    CopyCommit();
    CopyWait<0>();
    FenceAsyncProxy();
    __syncwarp();
    WarpArrive(threadIdx.x % 32, SharedAddress(&barriers_.full[full_.stage]));
    full_.Advance();
    at_.Advance();
  }

 private:
  RingBarriers<kStages>& barriers_;
  // The same positions: with one of them, stem_tf32.cuh spills more registers.
  RingPosition<kStages> at_, full_;
};

}  // namespace jax_convbatch::hopper
