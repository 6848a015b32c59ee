// SPDX-License-Identifier: Apache-2.0
// The ring of shared-memory stages between the threads that issue copies and
// the warpgroups that multiply.
#pragma once

#include "cuda/sm90/arch/ptx.cuh"
#include "cuda/sm90/arch/wgmma.cuh"

namespace jax_convbatch::hopper {

inline constexpr int kWarpgroup = 128;
inline constexpr int kConsumers = 2;  // warpgroups
inline constexpr int kThreads = (kConsumers + 1) * kWarpgroup;
// 40 x 128 + 232 x 256 registers: what an SM has.
inline constexpr int kProducerRegisters = 40;
inline constexpr int kConsumerRegisters = 232;

template <int kStages>
struct alignas(8) RingBarriers {
  uint64_t full[kStages], empty[kStages];

  // By one thread. A stage is full once `issuers` have arrived and their copies
  // have, empty once `warps` have.
  __device__ void Init(int issuers, int warps) {
    for (int i = 0; i < kStages; ++i) {
      BarrierInit(SharedAddress(&full[i]), issuers);
      BarrierInit(SharedAddress(&empty[i]), warps);
    }
    FenceBarrierInit();
  }
};

// One side's position in the ring.
template <int kStages>
struct RingPosition {
  int stage = 0;
  uint32_t round = 0;

  __device__ void Advance() {
    if (++stage == kStages) {
      stage = 0;
      round ^= 1;
    }
  }
  __device__ void Skip(int count) {
    const int to = stage + count;
    round ^= (to / kStages) & 1;
    stage = to % kStages;
  }
};

struct Nothing {
  __device__ void operator()() const {}
};

// Sets sums to first(m, i), now: before what comes next waits for something.
template <int kRows, int kHalfN, typename First>
__device__ __forceinline__ void BeginSums(float (&acc)[kRows][kHalfN],
                                          First first) {
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
#pragma unroll
    for (int i = 0; i < kHalfN; ++i) {
      acc[m][i] = first(m, i);
      asm volatile("" : "+f"(acc[m][i]));
    }
  }
}

// A warp gives a stage back.
struct ReleaseOwn {
  bool signals = threadIdx.x % 32 == 0;

  __device__ void operator()(uint32_t empty) const {
    if (signals) BarrierArrive(empty);
  }
};

// Multiplies `count` stages and adds what they give to acc. kA and kB say how
// the operands lie in a stage; a warpgroup has kRows rows of 64 and 2 kHalfN
// columns. address_a, address_b: of stage 0; a kResident b begins with the
// first of the sum, and has its own stages. `issued` is called when all are
// under way but not done: another warpgroup may take over the tensor cores.
template <typename T, Contiguous kA, Contiguous kB, bool kResident = false,
          int kRows, int kHalfN, int kStages, typename Issued = Nothing,
          typename Release = ReleaseOwn>
__device__ __forceinline__ void AddStages(
    float (&acc)[kRows][kHalfN], int count, uint32_t address_a,
    uint32_t address_b, int stage_bytes, RingBarriers<kStages>& barriers,
    RingPosition<kStages>& at, Issued issued = {}, Release release = {}) {
  int previous = -1;
  for (int i = 0; i < count; ++i) {
    BarrierWait(SharedAddress(&barriers.full[at.stage]), at.round);
    const uint64_t a = Descriptor(address_a + at.stage * stage_bytes);
    const uint64_t b =
        Descriptor(address_b +
                   (kResident ? i * 2 * kHalfN * 128 : at.stage * stage_bytes));
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int m = 0; m < kRows; ++m) {
        Wgmma<T, kA, kB, 2 * kHalfN>(
            acc[m], a + k * kReductionStep<kA> + m * (kBoxBytes >> 4),
            b + k * kReductionStep<kB>);
      }
    }
    WgmmaCommit();
    WgmmaWait<1>();
    if (previous >= 0) release(SharedAddress(&barriers.empty[previous]));
    previous = at.stage;
    at.Advance();
  }
  issued();
  WgmmaWait<0>();
  if (previous >= 0) release(SharedAddress(&barriers.empty[previous]));
}

// The same from zero, which is also what a reduction of nothing gives.
template <typename T, Contiguous kA, Contiguous kB, bool kResident = false,
          int kRows, int kHalfN, int kStages, typename Issued = Nothing,
          typename Release = ReleaseOwn>
__device__ __forceinline__ void MultiplyStages(
    float (&acc)[kRows][kHalfN], int count, uint32_t address_a,
    uint32_t address_b, int stage_bytes, RingBarriers<kStages>& barriers,
    RingPosition<kStages>& at, Issued issued = {}, Release release = {}) {
  BeginSums(acc, [](int, int) { return 0.0f; });
  AddStages<T, kA, kB, kResident>(acc, count, address_a, address_b, stage_bytes,
                                  barriers, at, issued, release);
}

}  // namespace jax_convbatch::hopper
