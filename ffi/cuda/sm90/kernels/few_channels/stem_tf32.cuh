// SPDX-License-Identifier: Apache-2.0
// fprop of f32 with few input channels, stems above all, and dgrad of few
// output channels, multiplied as TF32. As few_channels_fprop.cuh has it, the
// image rows of a tile lie in shared memory as they are in the image, and the
// multiplier takes its left operand from registers, each an element of a column
// and one load from the row band. The filter of 64 output channels lies in
// shared memory as TF32, transposed.
//
// A product's rows are 64 pixels of an image. The filter's channels are
// permuted so that a lane's sums are four neighbouring channels, stored at
// once.
//
// A sum's order is that of the filter's elements: it does not depend on the
// tile.
#pragma once

#include "cuda/sm90/arch/round_tf32.cuh"
#include "cuda/sm90/arch/wgmma.cuh"
#include "cuda/sm90/epilogue/lane_epilogue.cuh"
#include "cuda/sm90/kernels/few_channels/few_channels.cuh"
#include "cuda/sm90/kernels/few_channels/stem_tf32_problem.h"
#include "cuda/sm90/kernels/few_channels/stem_tf32_tiling.h"

namespace jax_convbatch::hopper {

// Of multiplying warpgroups; 56 x 128 + 152 x 384 registers.
inline constexpr int kStemConsumers = 3;
inline constexpr int kStemThreads = (1 + kStemConsumers) * kWarpgroup;
inline constexpr int kStemRegisters = 152, kStemProducers = 56;

// Columns of up to 8 kSteps elements. kLayer: with an epilogue.
template <int kSteps_, bool kLayer_>
struct StemConfig {
  static constexpr int kSteps = kSteps_;
  static constexpr bool kLayer = kLayer_;
  static constexpr int kFullSteps = StemFullSteps(kSteps);
  static constexpr int kBoxes = StemBoxes(kSteps);
  static constexpr int kFilterBytes = StemFilterBytes(kSteps);
};

// Of dgrad's filter: channels k to k + 3 of dx for element j of a column.
__device__ __forceinline__ float4 FlippedFour(const StemProblem& p, int j,
                                              int k) {
  const int channels = p.flipped;
  const int tap = (p.length - 1 - j) / channels;  // as the filter has it
  const float* const from =
      p.w + (int64_t{tap} * p.band.K + k) * channels + j % channels;
  return make_float4(__ldg(from), __ldg(from + channels),
                     __ldg(from + 2 * channels), __ldg(from + 3 * channels));
}

// By the multiplying warpgroups: 64 output channels from `first` on, four of an
// element at a time.
template <typename Config>
__device__ __forceinline__ void LoadStemFilter(const StemProblem& p, int first,
                                               uint32_t to) {
  constexpr int kThreads = kStemConsumers * kWarpgroup;
  const int K = p.band.K;
#pragma unroll 8
  for (int i = threadIdx.x - kWarpgroup; i < 16 * 8 * Config::kSteps;
       i += kThreads) {
    const int four = i % 4, sixteen = i / 32 % 4;
    const int j = i / 128 * 8 + i / 4 % 8;
    const int k = first + sixteen * 16 + four * 4;
    float4 v = make_float4(0, 0, 0, 0);
    if (j < p.length && k < K) {
      v = RoundTf32(p.flipped > 0 ? FlippedFour(p, j, k)
                                  : __ldg(reinterpret_cast<const float4*>(
                                        p.w + int64_t{j} * K + k)));
    }
    const float values[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = sixteen * 16 + e / 2 * 8 + four * 2 + e % 2;
      StoreShared1(to + j / 32 * kBoxBytes + row * 128 +
                       ((j / 4 % 8 ^ row % 8) << 4) + j % 4 * 4,
                   values[e]);
    }
  }
  FenceAsyncProxy();
}

// By the filling warpgroup: the row band that it has copied to `to`, as TF32.
__device__ __forceinline__ void RoundBand(const FewChannelsProblem& band,
                                          uint32_t to) {
  CopyCommit();
  CopyWait<0>();
  NamedBarrier(2, kWarpgroup);
#pragma unroll 4
  for (int i = threadIdx.x; i < band.rows * band.layout.pitch / 8;
       i += kWarpgroup) {
    StoreShared4(to + i * 16, RoundTf32(LoadShared4(to + i * 16)));
  }
}

// Elements of a column in shared memory: where they lie in the row band from
// their pixel's first on, in bytes. Of a step a lane has two, in a word.
template <typename Config>
struct StemElements {
  uint32_t words[Config::kSteps * 4];

  // By the multiplying warpgroups.
  __device__ __forceinline__ void Fill(const FewChannelsLayout& layout) {
    const int i = threadIdx.x - kWarpgroup;
    if (i >= Config::kSteps * 4) return;
    const int element = i / 4 * 8 + i % 4;
    words[i] = BandPair(layout, element).offset |
               BandPair(layout, element + 4).offset << 16;
  }
};

// A lane's.
template <typename Config>
struct StemLane {
  uint32_t words[Config::kSteps];

  __device__ __forceinline__ explicit StemLane(
      const StemElements<Config>& elements) {
#pragma unroll
    for (int i = 0; i < Config::kSteps; ++i) {
      words[i] = elements.words[i * 4 + threadIdx.x % 4];
    }
  }

  // Of step i, of the pixels whose first elements lie at `from`.
  __device__ __forceinline__ void Load(int i, int length,
                                       const uint32_t (&from)[2],
                                       uint32_t (&a)[4]) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int place = j < 2 ? words[i] & 0xFFFF : words[i] >> 16;
      a[j] = LoadShared(from[j % 2] + place);
      if (i >= Config::kFullSteps &&
          i * 8 + j / 2 * 4 + int(threadIdx.x % 4) >= length) {
        a[j] = 0;
      }
    }
  }
};

// 64 pixels by 64 channels.
template <typename Config>
__device__ __forceinline__ void MultiplyStem(const StemLane<Config>& elements,
                                             int length,
                                             const uint32_t (&from)[2],
                                             uint32_t filter,
                                             float (&sums)[32]) {
  constexpr int kBoxes = Config::kBoxes;
  uint32_t a[2][4][4];
  auto load = [&](int box) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (box * 4 + i < Config::kSteps) {
        elements.Load(box * 4 + i, length, from, a[box % 2][i]);
      }
    }
  };
#pragma unroll
  for (float& sum : sums) sum = 0;
  load(0);
#pragma unroll
  for (int box = 0; box < kBoxes; ++box) {
    const uint64_t b = Descriptor(filter + box * kBoxBytes);
    WgmmaFence();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (box * 4 + i < Config::kSteps) {
        WgmmaTf32<64>(sums, a[box % 2][i],
                      b + i * kReductionStep<Contiguous::kReduction>);
      }
    }
    WgmmaCommit();
    if (box + 1 < kBoxes) {
      if (box > 0) WgmmaWait<1>();
      load(box + 1);
    }
  }
  WgmmaWait<0>();
}

// What a lane has of 64 pixels by 64 channels from `channel` on; `pixel` is its
// first, the other one is `apart` further.
template <bool kLayer>
__device__ __forceinline__ void StoreStem(const StemProblem& p,
                                          const Epilogue& e,
                                          const float (&sums)[32], int image,
                                          int pixel, int apart, int channel) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int k = channel + i * 16 + threadIdx.x % 4 * 4;
    const bool has = k < p.band.K;
    const LaneEpilogue<float> epilogue(e, k, has && kLayer);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at_pixel = pixel + half * apart;
      const bool is_there = has && at_pixel < p.band.pixels;
      const int64_t at =
          (int64_t{image} * p.band.pixels + at_pixel) * p.band.K + k;
      const float* const sum = sums + 8 * i + 2 * half;
      float v[4] = {sum[0], sum[1], sum[4], sum[5]};
      uint4 y;
      if constexpr (kLayer) {
        y = epilogue.Apply(is_there, at, v);
      } else {
        y = PackLane<float>(v);
      }
      if (is_there) *reinterpret_cast<uint4*>(p.y + at) = y;
    }
  }
}

template <typename Config>
__device__ __forceinline__ void ConsumeStem(
    const StemProblem& p, const Epilogue& e, int group, int first, int step,
    int channel, const StemElements<Config>& places, uint32_t filter,
    uint32_t ring, RingBarriers<kStemStages>& barriers) {
  const int thread = threadIdx.x % kWarpgroup, lane = thread % 32;
  // The lane's pixels of 64.
  const int line = thread / 32 * 16 + lane / 4 * p.apart;
  const int apart = p.apart == 1 ? 8 : 1;
  const StemLane<Config> elements(places);
  const int strip_bytes = BandBytes(p.band);
  RingPosition<kStemStages> at;
  int turn = 0;
  for (int t = first; t < p.band.tiles; t += step) {
    const FewChannelsTile tile(p.band, t);
    const uint32_t band = ring + at.stage * p.band.stage_bytes;
    BarrierWait(SharedAddress(&barriers.full[at.stage]), at.round);
    for (int sub = 0; sub < p.band.tile; sub += 64) {
      const int pixel = tile.pixel + sub;
      if (pixel >= p.band.pixels) break;
      if (turn++ % kStemConsumers != group) continue;
      const uint32_t table = band + strip_bytes + (sub + line) * 4;
      const uint32_t from[2] = {
          band + max(0, int(LoadShared(table))),
          band + max(0, int(LoadShared(table + apart * 4)))};
      float sums[32];
      MultiplyStem<Config>(elements, p.length, from, filter, sums);
      StoreStem<Config::kLayer>(p, e, sums, tile.image, pixel + line, apart,
                                channel);
    }
    WarpArrive(lane, SharedAddress(&barriers.empty[at.stage]));
    at.Advance();
  }
}

template <typename Config>
__global__ void __launch_bounds__(kStemThreads, 1)
    StemKernel(const __grid_constant__ StemProblem p,
               const __grid_constant__ Epilogue e) {
  extern __shared__ uint8_t shared[];
  __shared__ RingBarriers<kStemStages> barriers;
  __shared__ StemElements<Config> places;
  const uint32_t filter = (SharedAddress(shared) + 1023) & ~1023u;
  const uint32_t ring = filter + Config::kFilterBytes;
  if (threadIdx.x == 0) {
    barriers.Init(kWarpgroup / 32 * kWarpArrivals,
                  kStemConsumers * kWarpgroup / 32 * kWarpArrivals);
  }
  __syncthreads();

  uint32_t first = blockIdx.x;
  const int channel = static_cast<int>(TakeDigit(p.shares, first)) * 64;
  const int step = gridDim.x / p.shares.divisor();
  const int warpgroup = threadIdx.x / kWarpgroup;
  if (warpgroup == 0) {
    GiveRegisters<kStemProducers>();
    CpAsyncRing<kStemStages> stages(barriers);
    for (int t = first; t < p.band.tiles; t += step) {
      const int stage = stages.Next();
      FillBand(p.band, FewChannelsTile(p.band, t),
               ring + stage * p.band.stage_bytes);
      RoundBand(p.band, ring + stage * p.band.stage_bytes);
      stages.Commit();
    }
  } else {
    TakeRegisters<kStemRegisters>();
    places.Fill(p.band.layout);
    LoadStemFilter<Config>(p, channel, filter);
    NamedBarrier(1, kStemConsumers * kWarpgroup);
    ConsumeStem<Config>(p, e, warpgroup - 1, first, step, channel, places,
                        filter, ring, barriers);
  }
}

}  // namespace jax_convbatch::hopper
