// SPDX-License-Identifier: Apache-2.0
// How two blocks of a cluster that share a tile of wgrad_halo_kernel.cuh add
// their sums: each warpgroup by itself, as it comes to its end, in stages of
// the ring that are no longer used while other warpgroups still multiply.
#pragma once

#include <type_traits>

#include "cuda/sm90/epilogue/add_in_order.cuh"
#include "cuda/sm90/kernels/wgrad/wgrad_partials.cuh"
#include "cuda/sm90/problem/wgrad_tiling.h"

namespace jax_convbatch::hopper {

// A position in a ring of as many stages as there is room for.
struct HaloRing {
  int stages, stage = 0;
  uint32_t round = 0;

  __device__ void Advance() {
    if (++stage == stages) {
      stage = 0;
      round ^= 1;
    }
  }
  // The stage `back` before this one.
  __device__ int Before(int back) const {
    return stage >= back ? stage - back : stage - back + stages;
  }
};

struct HaloBarriers {
  static constexpr int kGroups = 3;  // warpgroups, each with a stage for sums

  RingBarriers<HaloTiling::kMaxStages> ring;
  // The other block of the cluster has said which of its stages are free, from
  // `free_stage` on; its sums are there, for each warpgroup.
  uint64_t offered, arrived[kGroups];
  int free_stage;

  // By one thread.
  __device__ void Init(int warps, int sum_bytes) {
    ring.Init(1, warps);
    BarrierInit(SharedAddress(&offered), 1);
    for (auto& barrier : arrived) BarrierInit(SharedAddress(&barrier), 1);
    FenceBarrierInit();
    BarrierArriveExpect(SharedAddress(&offered), sizeof free_stage);
    for (auto& barrier : arrived) {
      BarrierArriveExpect(SharedAddress(&barrier), sum_bytes);
    }
  }
};

__device__ __forceinline__ int OtherOfTwo() { return ~blockIdx.x & 1; }

// To a place in the cluster, announced there as four bytes of a copy.
__device__ __forceinline__ void SendShared(uint32_t to, uint32_t barrier,
                                           int v) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.s32 "
      "[%0], %2, [%1];" ::"r"(to),
      "r"(barrier), "r"(v)
      : "memory");
}

// By the thread that issues the copies, after the last: the stages that would
// be filled next may hold the other block's sums once all have passed them.
__device__ __forceinline__ void OfferStages(HaloRing at,
                                            HaloBarriers& barriers) {
  const int first = at.stage;
  for (int i = 0; i < HaloBarriers::kGroups; ++i) {
    BarrierWait(SharedAddress(&barriers.ring.empty[at.stage]), at.round ^ 1);
    at.Advance();
  }
  ClusterWait();  // the other has set up its barriers
  SendShared(InCluster(SharedAddress(&barriers.free_stage), OtherOfTwo()),
             InCluster(SharedAddress(&barriers.offered), OtherOfTwo()), first);
}

// Each block adds the other's sums of its half of the quads to its own, to dw
// or to the partials. `next`: the stage that would be filled next.
template <typename Config, typename Quad>
__device__ __forceinline__ void AddInTwoByParts(const HaloProblem& problem,
                                                int tile, int thread,
                                                uint32_t ring, int next,
                                                HaloBarriers& barriers,
                                                Quad quad_of) {
  constexpr int kOwn = Config::kQuads / 2, kBatch = 4;
  static_assert(kOwn % kBatch == 0);
  const int group = __shfl_sync(~0u, thread / kWarpgroup, 0);
  // Where quads lie that are sent to a block whose free stages begin at one.
  auto sums_at = [&](int stage) {
    stage += group;
    if (stage >= problem.stages) stage -= problem.stages;
    return ring + stage * (problem.x_bytes + problem.dy_bytes) +
           thread % kWarpgroup * 16;
  };
  const uint32_t arrived = SharedAddress(&barriers.arrived[group]);
  const uint32_t own = sums_at(next);
  ClusterWait();
  BarrierWait(SharedAddress(&barriers.offered), 0);
  const int stage = *static_cast<volatile int*>(&barriers.free_stage);
  const uint32_t theirs = InCluster(sums_at(stage), OtherOfTwo());
  const uint32_t arrived_there = InCluster(arrived, OtherOfTwo());
  float4* to = reinterpret_cast<float4*>(problem.partials) +
               PartialSlot(problem, blockIdx.x, tile) *
                   (Config::kQuads * Config::kConsumed) +
               thread;
  // Registers have no addresses: of either half a code of its own.
  auto exchange = [&](auto sent, auto kept) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      SendShared4(theirs + i * kWarpgroup * 16, arrived_there,
                  quad_of(decltype(sent)::value + i));
    }
    BarrierWait(arrived, 0);
#pragma unroll
    for (int i = 0; i < kOwn; i += kBatch) {
      const int first = decltype(kept)::value + i;
      const auto place = PlaceOf<Config>(problem, tile, first / 8, thread);
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const int quad = first + j;
        if (!HasQuad<Config>(problem, tile, quad, thread)) continue;
        float4 v = LoadShared4(own + (i + j) * kWarpgroup * 16);
        Add(&v, quad_of(quad));
        if (problem.cluster == problem.splits) {
          WriteQuad<Config>(place, quad % 8, v);
        } else {
          to[quad * Config::kConsumed] = v;
        }
      }
    }
  };
  using First = std::integral_constant<int, 0>;
  using Second = std::integral_constant<int, kOwn>;
  if (OtherOfTwo() == 0) {
    exchange(First(), Second());
  } else {
    exchange(Second(), First());
  }
}

}  // namespace jax_convbatch::hopper
