// SPDX-License-Identifier: Apache-2.0
// fprop of deformable convolutions: a persistent implicit GEMM whose columns
// are sampled into shared memory.
//
// Two warpgroups sample, and one thread of them copies the filter as it lies in
// memory; two multiply, halves of one tile. f32 is multiplied as TF32 in the
// way of conv_tf32_kernel.cuh: output channels are the rows of the product, and
// the filter goes through registers. So they are where a tile has 256 channels:
// instructions of 256 columns do not fit the registers of 512 threads.
//
// A long reduction is cut among the blocks of a cluster, which exchange their
// sums and add them in order. Where it is cut follows from the geometry without
// N: results do not depend on the batch.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_DEFORM_DEFORM_KERNEL_CUH_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_DEFORM_DEFORM_KERNEL_CUH_

#include "cuda/sm90/arch/clusters.cuh"
#include "cuda/sm90/epilogue/epilogue.cuh"
#include "cuda/sm90/kernels/deform/deform_multiply.cuh"

namespace jax_convbatch::hopper {

// The sums of a tile are written; then they are read, and the ring is free. The
// sampling warps come to both only when they need the ring.

template <int kSplit>
__device__ __forceinline__ void SumsWritten() {
  if constexpr (kSplit == 1) {
    NamedBarrier(kMultiplied, kConsumers * kWarpgroup);
  } else {
    ClusterBarrier();
  }
}

template <int kSplit>
__device__ __forceinline__ void SumsRead() {
  if constexpr (kSplit == 1) {
    NamedBarrierArrive(kRingFree, kDeformThreads);
  } else {
    ClusterBarrier</*kWritten=*/false>();
  }
}

template <int kSplit>
__device__ __forceinline__ void WaitForRing() {
  if constexpr (kSplit == 1) {
    NamedBarrier(kRingFree, kDeformThreads);
  } else {
    SumsWritten<kSplit>();
    SumsRead<kSplit>();
  }
}

// To 16 bytes of channels of T.
template <typename T, int kQuads>
__device__ __forceinline__ void AddBias(const void* bias, int channel,
                                        float4 (&sum)[kQuads]) {
  const uint4 read = __ldg(
      reinterpret_cast<const uint4*>(static_cast<const T*>(bias) + channel));
  if constexpr (std::is_same_v<T, float>) {
    sum[0].x += __uint_as_float(read.x), sum[0].y += __uint_as_float(read.y);
    sum[0].z += __uint_as_float(read.z), sum[0].w += __uint_as_float(read.w);
  } else {
    const uint32_t pairs[4] = {read.x, read.y, read.z, read.w};
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      const float2 low = Unpack<T>(pairs[2 * q]);
      const float2 high = Unpack<T>(pairs[2 * q + 1]);
      sum[q].x += low.x, sum[q].y += low.y;
      sum[q].z += high.x, sum[q].w += high.y;
    }
  }
}

// Adds the blocks' sums of this block's share of the tile and writes them, by
// the warpgroups that multiply.
template <typename Config, int kSplit>
__device__ __forceinline__ void WriteTile(const DeformProblem& problem,
                                          const DeformTile& tile, int rank,
                                          uint32_t ring) {
  using T = typename Config::T;
  constexpr int kVector = 16 / sizeof(T), kQuads = kVector / 4;
  constexpr int kInRow = Config::kN / kVector;
  SumsWritten<kSplit>();
  constexpr int kWriters = kConsumers * kWarpgroup;
#pragma unroll 2
  for (int i = rank * kWriters + threadIdx.x % kWriters;
       i < Config::kM * kInRow; i += kSplit * kWriters) {
    const int row = i / kInRow;
    const int k = i % kInRow * kVector;
    const int pixel = tile.pixel + row, channel = tile.channel + k;
    if (pixel >= problem.pixels || channel >= tile.channels) continue;
    const uint32_t from = ring + (row * Config::kSumRow + k) * 4;
    float4 parts[kSplit][kQuads];
#pragma unroll
    for (int p = 0; p < kSplit; ++p) {
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        parts[p][q] = kSplit == 1 ? LoadShared4(from + q * 16)
                                  : LoadClusterShared(from + q * 16, p);
      }
    }
    float4 sum[kQuads];
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      sum[q] = parts[0][q];
#pragma unroll
      for (int p = 1; p < kSplit; ++p) {
        sum[q].x += parts[p][q].x, sum[q].y += parts[p][q].y;
        sum[q].z += parts[p][q].z, sum[q].w += parts[p][q].w;
      }
    }
    if (problem.bias != nullptr) AddBias<T>(problem.bias, channel, sum);
    auto* to = reinterpret_cast<uint4*>(static_cast<T*>(problem.y) +
                                        int64_t{pixel} * problem.K + channel);
    if constexpr (Config::kTf32) {
      *to = reinterpret_cast<const uint4&>(sum[0]);
    } else {
      *to = {Pack<T>(sum[0].x, sum[0].y), Pack<T>(sum[0].z, sum[0].w),
             Pack<T>(sum[1].x, sum[1].y), Pack<T>(sum[1].z, sum[1].w)};
    }
  }
  FenceAsyncProxy();  // the next filter comes where the sums were
  SumsRead<kSplit>();
}

template <typename Config, int kSplit>
__global__ void __launch_bounds__(kDeformThreads, 1)
    DeformFpropKernel(const __grid_constant__ DeformProblem problem) {
  extern __shared__ uint8_t memory[];
  __shared__ DeformShared<Config> shared;
  const uint32_t ring = (SharedAddress(memory) + 1023) & ~1023u;
  if (threadIdx.x == 0) {
    shared.ring.Init(kSamplingWarps + 1, kConsumers * kWarpgroup / 32);
  }
  __syncthreads();

  const int rank = blockIdx.x % kSplit;
  const int clusters = gridDim.x / kSplit;
  const DeformRange range(problem.stages, rank, kSplit);
  const int first = blockIdx.x / kSplit;
  const int warpgroup = threadIdx.x / kWarpgroup;
  if (warpgroup < 2) {
    GiveRegisters<Config::kSamplingRegisters>();
    SampleTiles<Config>(problem, range, first, clusters, ring, shared,
                        [] { WaitForRing<kSplit>(); });
    WaitForRing<kSplit>();  // of the last tile
  } else {
    TakeRegisters<Config::kConsumerRegisters>();
    RingPosition<Config::kStages> at;
    for (int t = first; t < problem.tiles; t += clusters) {
      MultiplyTile<Config>(range.end - range.first, warpgroup - 2, ring, shared,
                           at);
      WriteTile<Config, kSplit>(problem, DeformTileAt<Config>(problem, t), rank,
                                ring);
    }
  }
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_DEFORM_DEFORM_KERNEL_CUH_
