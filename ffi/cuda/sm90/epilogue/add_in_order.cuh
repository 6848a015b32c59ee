// SPDX-License-Identifier: Apache-2.0
// How sums that many blocks left in partials are added: in order, with many
// partials on the way to a thread.
#pragma once

#include "cuda/sm80/direct/staging.cuh"
#include "cuda/sm90/arch/ptx.cuh"

namespace jax_convbatch::hopper {

// A quad is four f32. Threads of a block, and the quads that each has on the
// way to shared memory: of loads to registers the compiler has two or three
// under way at a time, and waits for these before it asks for the next.
inline constexpr int kAddBits = 7, kAddThreads = 1 << kAddBits, kAddAhead = 16;

using AddRing = float4[kAddAhead][kAddThreads];

__device__ __forceinline__ void Add(float4* sum, const float4& v) {
  sum->x += v.x, sum->y += v.y, sum->z += v.z, sum->w += v.w;
}

// Where a thread finds its quads of the partials that it adds: the first, and
// how far it is from there to the second, and from then on to the next.
struct PartialLine {
  const float4* at;
  int64_t first_step, step;
  int count;
};

// Adds partials in order: kEach quads of each, kSpacing apart. `meanwhile` runs
// when the first are on the way.
template <int kEach, int kSpacing, typename Meanwhile>
__device__ __forceinline__ void AddInOrder(float4 (&sum)[kEach],
                                           PartialLine line, AddRing& ring,
                                           Meanwhile meanwhile) {
  constexpr int kPartials = kAddAhead / kEach;
  auto copy = [&](int partial) {
    if (partial < line.count) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        direct::CopyAsync16(
            reinterpret_cast<char*>(
                &ring[partial % kPartials * kEach + i][threadIdx.x]),
            line.at + i * kSpacing, true);
      }
      line.at += partial == 0 ? line.first_step : line.step;
    }
    direct::CommitCopies();
  };
#pragma unroll
  for (int partial = 0; partial < kPartials; ++partial) copy(partial);
  meanwhile();
#pragma unroll
  for (float4& v : sum) v = make_float4(0, 0, 0, 0);
  for (int partial = 0; partial < line.count; ++partial) {
    direct::WaitForCopies<kPartials - 1>();
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      Add(&sum[i], LoadShared4(SharedAddress(
                       &ring[partial % kPartials * kEach + i][threadIdx.x])));
    }
    copy(partial + kPartials);
  }
}

// How a block's threads share the partials of its sums: groups of 2^lane_bits
// threads, of which each adds a run.
struct AddTeams {
  int lane_bits;

  // For so many sums of so many partials: four groups where sums are long, or
  // would leave SMs with few threads.
  static AddTeams For(int64_t sums, int64_t partials) {
    const bool few = sums < 65536 && partials > 8;
    return {kAddBits - (partials > 16 || few ? 2 : 0)};
  }

  int groups() const { return kAddThreads >> lane_bits; }
  __host__ __device__ int lanes() const { return 1 << lane_bits; }
  __device__ int lane() const { return threadIdx.x & (lanes() - 1); }
  __device__ int group() const { return threadIdx.x >> lane_bits; }
  // Of so many partials, where a group's run begins.
  __device__ int Begin(int group, int partials) const {
    return group * partials >> (kAddBits - lane_bits);
  }

  // Adds the groups' sums in order. The first group has them then; false for
  // the others. By all threads.
  template <int kEach>
  __device__ __forceinline__ bool Join(float4 (&sum)[kEach],
                                       AddRing& ring) const {
    if (lane_bits == kAddBits) return true;
#pragma unroll
    for (int i = 0; i < kEach; ++i) ring[i][threadIdx.x] = sum[i];
    __syncthreads();
    if (group() > 0) return false;
    for (int at = threadIdx.x + lanes(); at < kAddThreads; at += lanes()) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) Add(&sum[i], ring[i][at]);
    }
    return true;
  }
};

}  // namespace jax_convbatch::hopper
