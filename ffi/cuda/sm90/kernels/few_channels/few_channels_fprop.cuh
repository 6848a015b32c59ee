// SPDX-License-Identifier: Apache-2.0
// fprop of few channels: y[pixels, K] from row bands of x and the filter, both
// in shared memory; the whole filter, but where blocks share the channels of y.
#pragma once

#include "cuda/sm90/arch/wgmma_registers.cuh"
#include "cuda/sm90/epilogue/epilogue.cuh"
#include "cuda/sm90/kernels/few_channels/few_channels.cuh"

namespace jax_convbatch::hopper {

inline constexpr int kFewChannelsStores = 2;  // buffers of each warpgroup

// Of multiplying warpgroups; 40 x 128 + 152 x 384 registers.
inline constexpr int kFewChannelsConsumers = 3;
inline constexpr int kFewChannelsThreads =
    (1 + kFewChannelsConsumers) * kWarpgroup;
inline constexpr int kFewChannelsRegisters = 152;

// Elements in 16 bytes, a chunk. A thread stores one chunk of each of the rows
// `tid / 8`, + 16, + 32, ... of a box.
inline constexpr int kChunk = 8;
inline constexpr int kRowStep = 16;
inline constexpr int kRowsOfBox = 64 / kRowStep;

// kSteps: of 16 elements of the columns, padded.
// kMasked: there may be elements that no column has.
template <typename T_, int kSteps_, bool kOdd_, bool kMasked_ = true>
struct FewChannelsFpropConfig {
  using T = T_;
  static constexpr int kSteps = kSteps_;
  static constexpr bool kOdd = kOdd_;
  static constexpr bool kMasked = kMasked_;
  // 64 channels of the filter.
  static constexpr int kFilterBytes = (kSteps + 3) / 4 * kBoxBytes;
  static constexpr int kStoreBytes =
      kFewChannelsConsumers * kFewChannelsStores * kBoxBytes;
};

__device__ __forceinline__ void StoreShared(uint32_t to,
                                            const uint32_t (&v)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v[0]),
               "r"(v[1]), "r"(v[2]), "r"(v[3])
               : "memory");
}

// Where a thread's chunk lies in a box.
__device__ __forceinline__ uint32_t ChunkAddress(int thread) {
  const int row = thread / kChunk;
  return row * 128 + ((thread % kChunk ^ row % 8) << 4);
}

// A block's share of the filter as Contiguous::kRows, by all threads: for each
// 64 channels all boxes of 64 rows. Rows that no element of a column meets are
// zeros.
template <typename Config>
__device__ __forceinline__ void LoadFilter(const FewChannelsProblem& problem,
                                           uint32_t to) {
  constexpr int kRows = (Config::kSteps + 3) / 4 * 64;
  const int first = blockIdx.y * problem.share;
  for (int i = threadIdx.x; i < problem.share / 64 * kRows * 8;
       i += blockDim.x) {
    const int chunk = i % 8;
    const int j = i / 8 % kRows;
    const int block = i / 8 / kRows;
    const int row = FilterRow(problem.layout, j);
    const int k = first + block * 64 + chunk * kChunk;
    uint32_t words[4] = {0, 0, 0, 0};
    if (row >= 0) {
      const uint16_t* from = problem.w + int64_t{row} * problem.K + k;
      int step = 1;
      if (problem.flipped > 0) {
        const int tap = row / problem.flipped;
        step = problem.flipped;
        from = problem.w +
               (int64_t{problem.taps - 1 - tap} * problem.K + k) * step +
               (row - tap * step);
      }
#pragma unroll
      for (int e = 0; e < kChunk; ++e) {
        if (k + e < problem.K) {
          words[e / 2] |= uint32_t{__ldg(from + e * step)} << (e % 2 * 16);
        }
      }
    }
    StoreShared(
        to + block * Config::kFilterBytes + j * 128 + ((chunk ^ j % 8) << 4),
        words);
  }
  FenceAsyncProxy();
}

// 64 pixels x 64 channels, as many of them as there are.
template <typename T, typename EpilogueT>
__device__ __forceinline__ void StoreFewChannelsBox(
    const FewChannelsProblem& problem, const EpilogueT& epilogue,
    float (&acc)[1][32], uint32_t buffer, int barrier, int image, int pixel,
    int channel) {
  const int thread = threadIdx.x % kWarpgroup;
  const int lane = thread % 32;
  const int line = thread / 32 * 16 + lane % 16;
  auto address = [&](int j) {
    return buffer + line * 128 + (((j + lane / 16) ^ (line % 8)) << 4);
  };
  if constexpr (EpilogueT::kPresent) {
    const int64_t first = int64_t{image} * problem.pixels + pixel;
    PreActivate<T>(epilogue, acc, first, problem.pixels - pixel, channel,
                   problem.K);
  }
  if (thread == 0) StoreWaitRead<kFewChannelsStores - 1>();
  NamedBarrier(barrier, kWarpgroup);
  if constexpr (EpilogueT::kPresent) {
    StoreActivated<T>(epilogue, acc, [&](int, int j, const uint32_t (&v)[4]) {
      StoreMatrix4(address(j), v[0], v[1], v[2], v[3]);
    });
  } else {
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      const float* a = &acc[0][4 * j];
      StoreMatrix4(address(j), Pack<T>(a[0], a[1]), Pack<T>(a[2], a[3]),
                   Pack<T>(a[4], a[5]), Pack<T>(a[6], a[7]));
    }
  }
  FenceAsyncProxy();
  NamedBarrier(barrier, kWarpgroup);
  if (problem.store_by_map) {
    if (thread == 0) {
      StoreTile3(problem.y_map, buffer, channel, pixel, image);
      StoreCommit();
    }
    return;
  }
  const int k = channel + thread % kChunk * kChunk;
#pragma unroll
  for (int r = 0; r < kRowsOfBox; ++r) {
    const int at = pixel + thread / kChunk + r * kRowStep;
    if (at >= problem.pixels) continue;
    uint16_t* to =
        problem.y + (int64_t{image} * problem.pixels + at) * problem.K + k;
    const uint32_t from = buffer + ChunkAddress(thread) + r * kRowStep * 128;
    if (problem.K % 4 == 0) {
#pragma unroll
      for (int i = 0; i < kChunk; i += 4) {
        if (k + i >= problem.K) break;
        *reinterpret_cast<uint2*>(to + i) =
            make_uint2(LoadShared(from + 2 * i), LoadShared(from + 2 * i + 4));
      }
      continue;
    }
#pragma unroll
    for (int i = 0; i < kChunk; i += 2) {
      if (k + i >= problem.K) break;
      const uint32_t v = LoadShared(from + 2 * i);
      to[i] = static_cast<uint16_t>(v);
      if (k + i + 1 < problem.K) to[i + 1] = static_cast<uint16_t>(v >> 16);
    }
  }
}

template <typename Config, typename EpilogueT>
__device__ __forceinline__ void ConsumeBands(
    const FewChannelsProblem& problem, const EpilogueT& epilogue, int group,
    uint32_t filter, uint32_t store, uint32_t ring,
    RingBarriers<kFewChannelsStages>& barriers) {
  const int thread = threadIdx.x % kWarpgroup;
  const int lane = thread % 32;
  const int line = thread / 32 * 16 + lane / 4;
  // The elements that this thread loads of every pixel.
  int offset[2 * Config::kSteps];
  uint32_t mask[2 * Config::kSteps];
#pragma unroll
  for (int i = 0; i < 2 * Config::kSteps; ++i) {
    const BandPair pair(problem.layout, i * 4 + lane % 4);
    offset[i] = pair.offset;
    mask[i] = pair.mask;
  }
  const int strip_bytes = BandBytes(problem);
  const int first = blockIdx.y * problem.share;
  const int share = min(problem.share, problem.K - first);
  RingPosition<kFewChannelsStages> at;
  int turn = 0, box = 0;
  for (int t = blockIdx.x; t < problem.tiles; t += gridDim.x) {
    const FewChannelsTile tile(problem, t);
    const uint32_t band = ring + at.stage * problem.stage_bytes;
    BarrierWait(SharedAddress(&barriers.full[at.stage]), at.round);
    for (int sub = 0; sub < problem.tile; sub += 64) {
      const int pixel = tile.pixel + sub;
      if (pixel >= problem.pixels) break;
      if (turn++ % kFewChannelsConsumers != group) continue;
      const uint32_t table = band + strip_bytes + (sub + line) * 4;
      const int from[2] = {int(band) + max(0, int(LoadShared(table))),
                           int(band) + max(0, int(LoadShared(table + 32)))};
      uint32_t a[Config::kSteps][4];
#pragma unroll
      for (int i = 0; i < Config::kSteps; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int pair = 2 * i + j / 2;
          a[i][j] = LoadPair<Config::kOdd>(from[j % 2] + offset[pair]) &
                    (Config::kMasked ? mask[pair] : ~0u);
        }
      }
      for (int channel = 0; channel < share; channel += 64) {
        float acc[1][32];
#pragma unroll
        for (int i = 0; i < 32; ++i) acc[0][i] = 0;
        const uint64_t b =
            Descriptor(filter + channel / 64 * Config::kFilterBytes);
        WgmmaFence();
#pragma unroll
        for (int i = 0; i < Config::kSteps; ++i) {
          WgmmaRegisters<typename Config::T, Contiguous::kRows, 64>(
              acc[0], a[i], b + i * kReductionStep<Contiguous::kRows>);
        }
        WgmmaCommit();
        WgmmaWait<0>();
        StoreFewChannelsBox<typename Config::T>(
            problem, epilogue, acc, store + box * kBoxBytes, 1 + group,
            tile.image, pixel, first + channel);
        box = (box + 1) % kFewChannelsStores;
      }
    }
    WarpArrive(lane, SharedAddress(&barriers.empty[at.stage]));
    at.Advance();
  }
  if (thread == 0) StoreWaitRead<0>();
}

template <typename Config, typename EpilogueT>
__global__ void __launch_bounds__(kFewChannelsThreads, 1)
    FewChannelsFpropKernel(const __grid_constant__ FewChannelsProblem problem,
                           const __grid_constant__ EpilogueT epilogue) {
  extern __shared__ uint8_t shared[];
  __shared__ RingBarriers<kFewChannelsStages> barriers;
  const uint32_t filter = (SharedAddress(shared) + 1023) & ~1023u;
  const uint32_t store = filter + problem.share / 64 * Config::kFilterBytes;
  const uint32_t ring = store + Config::kStoreBytes;
  if (threadIdx.x == 0) {
    barriers.Init(kWarpgroup / 32 * kWarpArrivals,
                  kFewChannelsConsumers * kWarpgroup / 32 * kWarpArrivals);
  }
  LoadFilter<Config>(problem, filter);
  __syncthreads();

  const int warpgroup = threadIdx.x / kWarpgroup;
  if (warpgroup == 0) {
    GiveRegisters<kProducerRegisters>();
    CpAsyncRing<kFewChannelsStages> stages(barriers);
    for (int t = blockIdx.x; t < problem.tiles; t += gridDim.x) {
      const int stage = stages.Next();
      FillBand(problem, FewChannelsTile(problem, t),
               ring + stage * problem.stage_bytes);
      stages.Commit();
    }
  } else {
    TakeRegisters<kFewChannelsRegisters>();
    ConsumeBands<Config>(
        problem, epilogue, warpgroup - 1, filter,
        store + (warpgroup - 1) * kFewChannelsStores * kBoxBytes, ring,
        barriers);
  }
}

}  // namespace jax_convbatch::hopper
