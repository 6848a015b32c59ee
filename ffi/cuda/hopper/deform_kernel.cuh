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
#ifndef JAX_CONVBATCH_CUDA_HOPPER_DEFORM_KERNEL_CUH_
#define JAX_CONVBATCH_CUDA_HOPPER_DEFORM_KERNEL_CUH_

#include "cuda/hopper/deform_sampling.cuh"
#include "cuda/hopper/tf32_fragments.cuh"

namespace jax_convbatch::hopper {

inline constexpr int kDeformThreads = 2 * kConsumers * kWarpgroup;
inline constexpr int kRingFree = 1, kMultiplied = 2;  // named barriers

template <typename T_, int kN_, int kStages_>
struct DeformConfig {
  using T = T_;
  static constexpr bool kTf32 = std::is_same_v<T, float>;
  static constexpr int kN = kN_, kStages = kStages_;
  static constexpr int kM = kDeformPixels;
  // A sampling lane's pixels on the way.
  static constexpr int kBuffers = kN < 256 ? 4 : 2;
  // Whether output channels are the rows of the product, and pixels its
  // columns.
  static constexpr bool kSwapped = kTf32 || kN == 256;
  static constexpr int kChannels = 128 / sizeof(T);  // of a stage
  static constexpr int kColumnBytes = kM * 128;
  static constexpr int kStageBytes = kColumnBytes + kN * 128;
  static constexpr int kRingBytes = kStages * kStageBytes;
  // Of a TF32 tile, blocks of 64 output channels of a warpgroup, and pixels.
  static constexpr int kBlocks = kN == 256 ? 2 : 1;
  static constexpr int kGroupPixels = kN == 64 ? kM / 2 : kM;
  // Finished sums lie in the ring, a pixel a row, spread over the banks.
  static constexpr int kSumRow = kN + (kSwapped ? 4 : 8);
  static_assert(kM * kSumRow * 4 <= kRingBytes);
  // 65536 registers for the four warpgroups: sums, or pixels on the way.
  static constexpr int kSamplingRegisters = kN < 256 ? 128 : kTf32 ? 80 : 88;
  static constexpr int kConsumerRegisters = 256 - kSamplingRegisters;
};

template <typename Config>
struct DeformShared {
  RingBarriers<Config::kStages> ring;
  DeformTable<Config::kM> tables[kSamplingWarps];
};

struct DeformTile {
  int pixel, group, channel, channels;  // output channels: first, and end
};

template <typename Config>
__device__ __forceinline__ DeformTile DeformTileAt(const DeformProblem& problem,
                                                   int tile) {
  uint32_t rest = tile;
  uint32_t column = TakeDigit(problem.n_tiles, rest);
  const int n = TakeDigit(problem.group_n_tiles, column);
  const int first = int(column) * problem.group_outputs;
  return {int(rest) * Config::kM, int(column), first + n * Config::kN,
          first + problem.group_outputs};
}

// This block's part of the reduction of a tile.
struct DeformRange {
  int first, end;

  __device__ DeformRange(int stages, int rank, int split)
      : first(int64_t{stages} * rank / split),
        end(int64_t{stages} * (rank + 1) / split) {}
};

// ---- sampling ---------------------------------------------------------------

// A warp's way through the stages of this block's tiles.
template <typename Config>
struct DeformWalk {
  DeformTile tile;
  int index, stage;

  __device__ DeformWalk(const DeformProblem& problem, const DeformRange& range,
                        int first)
      : index(first), stage(range.first) {
    tile = DeformTileAt<Config>(problem, index);
  }

  __device__ __forceinline__ void Advance(const DeformProblem& problem,
                                          const DeformRange& range,
                                          int clusters) {
    if (++stage < range.end) return;
    stage = range.first;
    index += clusters;
    tile = DeformTileAt<Config>(problem, index);
  }

  // The tap, and the first channel in its group.
  __device__ __forceinline__ int2 Place(const DeformProblem& problem) const {
    uint32_t block = stage;
    const int tap = TakeDigit(problem.taps, block);
    return make_int2(tap, int(block) * Config::kChannels);
  }

  // Of the warp's row `row`.
  __device__ __forceinline__ DeformEntry Load(const DeformProblem& problem,
                                              int row) const {
    const int pixel = tile.pixel + row;
    if (index >= problem.tiles || pixel >= problem.pixels) {
      return {make_float4(0, 0, 0, 0), -1, 0};
    }
    const int2 place = Place(problem);
    const int offset_group = problem.offset_channels.Divide(
        tile.group * problem.group_channels + place.y);
    const int64_t entry =
        (int64_t{pixel} * problem.offset_groups + offset_group) *
            problem.taps.divisor() +
        place.x;
    return {__ldg(problem.corners + entry), __ldg(problem.cells + entry),
            int(problem.image_pixels.Divide(pixel)) * problem.height *
                problem.width};
  }
};

template <typename Config>
__device__ __forceinline__ void CopyFilter(const DeformProblem& problem, int k,
                                           int channel, int tap, uint32_t to,
                                           uint64_t* full) {
  // As few copies as there can be: it is a sampling thread that issues them.
  constexpr int kBox = 128 / sizeof(typename Config::T);
  BarrierArriveExpect(SharedAddress(full), Config::kN * 128);
  if (problem.whole_boxes) {
    LoadTile4(to, problem.weights, SharedAddress(full), 0, channel, k / kBox,
              tap);
    return;
  }
#pragma unroll
  for (int n = 0; n < Config::kN; n += kBox) {
    LoadTile3(to + n * 128, problem.weights, SharedAddress(full), k + n,
              channel, tap);
  }
}

// The stages of all of this block's tiles, by the sampling warps. Once a lane
// has blended a pixel, it loads a later one into the same registers, so that
// loads are always on the way. `wait` is called before the first stage of a
// tile.
template <typename Config, typename Wait>
__device__ __forceinline__ void SampleTiles(const DeformProblem& problem,
                                            const DeformRange& range, int first,
                                            int clusters, uint32_t ring,
                                            DeformShared<Config>& shared,
                                            Wait wait) {
  using T = typename Config::T;
  constexpr int kRows = Config::kM / kSamplingWarps, kPixels = kRows / 4;
  constexpr int kBuffers = Config::kBuffers;
  static_assert(kPixels % kBuffers == 0);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int in_pixel = lane % 8, row = lane / 8;
  auto& table = shared.tables[warp];
  // A row's place in the swizzle is that of its number modulo 8.
  const uint32_t line = ring + (warp * kRows + row) * 128;
  const uint32_t chunk[2] = {uint32_t(in_pixel ^ (warp * kRows + row) % 8) << 4,
                             uint32_t(in_pixel ^ (warp * kRows + row + 4) % 8)
                                 << 4};

  DeformSource source;
  source.pixel = int64_t{problem.channels} * sizeof(T);
  source.row = source.pixel * problem.width;
  DeformWalk<Config> walk(problem, range, first);
  const int own = lane < kRows ? warp * kRows + lane : 1 << 30;
  DeformEntry next = walk.Load(problem, own);
  // Of the stage that is loaded.
  int tap, channel, k;
  bool starts;
  auto turn = [&](int which) {
    __syncwarp();
    if (lane < kRows) table.Put(which, lane, Decode(problem, next));
    __syncwarp();
    const int2 place = walk.Place(problem);
    tap = place.x, channel = place.y, k = walk.tile.channel;
    starts = walk.stage == range.first;
    const int own_channel = channel + in_pixel * (16 / int(sizeof(T)));
    source.there = own_channel < problem.group_channels;
    source.at =
        static_cast<const uint8_t*>(problem.x) +
        (walk.tile.group * problem.group_channels + own_channel) * sizeof(T);
    walk.Advance(problem, range, clusters);
    next = walk.Load(problem, own);
  };

  if (first >= problem.tiles) return;
  const int tiles = (problem.tiles - 1 - first) / clusters + 1;
  const int stages = tiles * (range.end - range.first);
  uint4 corners[kBuffers][4];
  turn(0);
#pragma unroll
  for (int i = 0; i < kBuffers; ++i) {
    LoadCorners(corners[i], source, table.place[0][row + 4 * i]);
  }
  RingPosition<Config::kStages> at;
#pragma unroll 1
  for (int j = 0; j < stages; ++j) {
    if (starts && j > 0) wait();
    BarrierWait(SharedAddress(&shared.ring.empty[at.stage]), at.round ^ 1);
    const uint32_t stage = at.stage * Config::kStageBytes;
    if (threadIdx.x == 0) {
      CopyFilter<Config>(problem, k, channel, tap,
                         ring + stage + Config::kColumnBytes,
                         &shared.ring.full[at.stage]);
    }
#pragma unroll
    for (int i = 0; i < kPixels; ++i) {
      auto& corner = corners[i % kBuffers];
      StoreShared(line + stage + i * 512 + chunk[i % 2],
                  Blend<T>(table.weight[j % 2][row + 4 * i], corner[0],
                           corner[1], corner[2], corner[3]));
      constexpr int kAhead = kPixels - kBuffers;  // the last of this stage
      if (i < kAhead) {
        LoadCorners(corner, source,
                    table.place[j % 2][row + 4 * (i + kBuffers)]);
      } else if (j + 1 < stages) {
        if (i == kAhead) turn((j + 1) % 2);
        LoadCorners(corner, source,
                    table.place[(j + 1) % 2][row + 4 * (i - kAhead)]);
      }
    }
    __syncwarp();
    if (lane == 0) BarrierArrive(SharedAddress(&shared.ring.full[at.stage]));
    at.Advance();
  }
}

// ---- multiplying ------------------------------------------------------------

// Waits for a stage and orders the samples in it before the multiplier's reads.
// The fence waits for all memory operations of its thread: a thread that
// samples has loads on the way.
template <int kStages>
__device__ __forceinline__ void WaitForStage(RingBarriers<kStages>& barriers,
                                             const RingPosition<kStages>& at) {
  BarrierWait(SharedAddress(&barriers.full[at.stage]), at.round);
  FenceAsyncProxy();
}

// MultiplyStages of sampled stages.
template <typename T, Contiguous kA, Contiguous kB, int kRows, int kHalfN,
          int kStages>
__device__ __forceinline__ void MultiplySamples(float (&acc)[kRows][kHalfN],
                                                int count, uint32_t address_a,
                                                uint32_t address_b,
                                                int stage_bytes,
                                                RingBarriers<kStages>& barriers,
                                                RingPosition<kStages>& at) {
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
#pragma unroll
    for (int i = 0; i < kHalfN; ++i) acc[m][i] = 0.0f;
  }
  const bool signals = threadIdx.x % 32 == 0;
  int previous = -1;
  for (int i = 0; i < count; ++i) {
    WaitForStage(barriers, at);
    const uint64_t a = Descriptor(address_a + at.stage * stage_bytes);
    const uint64_t b = Descriptor(address_b + at.stage * stage_bytes);
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
    if (previous >= 0 && signals) {
      BarrierArrive(SharedAddress(&barriers.empty[previous]));
    }
    previous = at.stage;
    at.Advance();
  }
  WgmmaWait<0>();
  if (previous >= 0 && signals) {
    BarrierArrive(SharedAddress(&barriers.empty[previous]));
  }
}

// MultiplyFragments with the registers of 8 channels at a time.
template <int kBlocks, int kHalfN, int kStages>
__device__ __forceinline__ void MultiplyEights(
    float (&acc)[kBlocks][kHalfN], int count, uint32_t filter, uint32_t pixels,
    int stage_bytes, const FragmentLoader<kBlocks>& loader,
    RingBarriers<kStages>& barriers, RingPosition<kStages>& at) {
#pragma unroll
  for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
    for (int i = 0; i < kHalfN; ++i) acc[m][i] = 0.0f;
  }
  if (count == 0) return;
  const bool signals = threadIdx.x % 32 == 0;
  int previous = -1;
  uint32_t a[2][kBlocks][4];
  WaitForStage(barriers, at);
  loader.Load(filter + at.stage * stage_bytes, 0, a[0]);
  for (int i = 0; i < count; ++i) {
    const int stage = at.stage;
    const uint64_t b = Descriptor(pixels + stage * stage_bytes);
    at.Advance();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      WgmmaFence();
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
        WgmmaTf32<2 * kHalfN>(acc[m], a[k % 2][m],
                              b + k * kReductionStep<Contiguous::kReduction>);
      }
      WgmmaCommit();
      WgmmaWait<1>();
      if (k == 0 && previous >= 0 && signals) {
        BarrierArrive(SharedAddress(&barriers.empty[previous]));
      }
      if (k < 3) {
        loader.Load(filter + stage * stage_bytes, k + 1, a[(k + 1) % 2]);
      } else if (i + 1 < count) {
        WaitForStage(barriers, at);
        loader.Load(filter + at.stage * stage_bytes, 0, a[0]);
      }
    }
    previous = stage;
  }
  WgmmaWait<0>();
  if (signals) BarrierArrive(SharedAddress(&barriers.empty[previous]));
}

// Forms a warpgroup's sums and writes them to the ring, once both have read it.
template <typename Config>
__device__ __forceinline__ void MultiplyTile(
    int stages, int group, uint32_t ring, DeformShared<Config>& shared,
    RingPosition<Config::kStages>& at) {
  const int warp = threadIdx.x % kWarpgroup / 32;
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  constexpr int kRow = Config::kSumRow * 4;
  const uint32_t filter = ring + Config::kColumnBytes;
  if constexpr (Config::kTf32) {
    constexpr int kBlocks = Config::kBlocks, kPixels = Config::kGroupPixels;
    const int channel = kPixels == Config::kM ? group * kBlocks * 64 : 0;
    const int pixel = kPixels == Config::kM ? 0 : group * kPixels;
    const FragmentLoader<kBlocks> loader(t, 4);
    float acc[kBlocks][kPixels / 2];
    MultiplyEights(acc, stages, filter + channel * 128, ring + pixel * 128,
                   Config::kStageBytes, loader, shared.ring, at);
    NamedBarrier(kMultiplied, kConsumers * kWarpgroup);
    const FragmentLane<kBlocks> rows(threadIdx.x);
    const uint32_t to = ring + (pixel + 2 * t) * kRow + channel * 4 +
                        rows.box * 128 + rows.chunk * 16 + rows.half * 8;
#pragma unroll
    for (int i = 0; i < kPixels / 2; ++i) {
      if (i & 2) continue;  // 8 pixels have 4 registers, two rows of two
      const uint32_t line = to + (i / 4 * 8 + i % 2) * kRow;
      if constexpr (kBlocks == 2) {
        StoreShared4(line, make_float4(acc[0][i], acc[0][i + 2], acc[1][i],
                                       acc[1][i + 2]));
      } else {
        StoreShared2(line, make_float2(acc[0][i], acc[0][i + 2]));
      }
    }
  } else if constexpr (Config::kSwapped) {
    float acc[2][Config::kM / 2];
    MultiplySamples<typename Config::T, Contiguous::kRows,
                    Contiguous::kReduction>(
        acc, stages, filter + group * 2 * kBoxBytes, ring, Config::kStageBytes,
        shared.ring, at);
    NamedBarrier(kMultiplied, kConsumers * kWarpgroup);
    const uint32_t to = ring + 2 * t * kRow + (group * 128 + warp * 16 + g) * 4;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int i = 0; i < Config::kM / 2; ++i) {
        StoreShared1(to + (i / 4 * 8 + i % 2) * kRow + m * 256 + (i & 2) * 16,
                     acc[m][i]);
      }
    }
  } else {
    float acc[1][Config::kN / 2];
    MultiplySamples<typename Config::T, Contiguous::kReduction,
                    Contiguous::kRows>(acc, stages, ring + group * kBoxBytes,
                                       filter, Config::kStageBytes, shared.ring,
                                       at);
    NamedBarrier(kMultiplied, kConsumers * kWarpgroup);
    const uint32_t to = ring + (group * 64 + warp * 16 + g) * kRow + t * 8;
#pragma unroll
    for (int i = 0; i < Config::kN / 2; i += 4) {
      StoreShared2(to + i * 8, make_float2(acc[0][i], acc[0][i + 1]));
      StoreShared2(to + 8 * kRow + i * 8,
                   make_float2(acc[0][i + 2], acc[0][i + 3]));
    }
  }
}

// ---- the way out ------------------------------------------------------------

// The sums of a tile are written; then they are read, and the ring is free. The
// sampling warps come to both only when they need the ring.

template <int kSplit>
__device__ __forceinline__ void SumsWritten() {
  if constexpr (kSplit == 1) {
    NamedBarrier(kMultiplied, kConsumers * kWarpgroup);
  } else {
    asm volatile(
        "barrier.cluster.arrive.release.aligned;\n"
        "barrier.cluster.wait.acquire.aligned;" ::
            : "memory");
  }
}

template <int kSplit>
__device__ __forceinline__ void SumsRead() {
  if constexpr (kSplit == 1) {
    NamedBarrierArrive(kRingFree, kDeformThreads);
  } else {
    asm volatile(
        "barrier.cluster.arrive.relaxed.aligned;\n"
        "barrier.cluster.wait.aligned;" ::
            : "memory");
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

__device__ __forceinline__ float4 LoadCluster4(uint32_t address, int rank) {
  float4 v;
  asm volatile(
      "{\n.reg .u32 at;\n"
      "mapa.shared::cluster.u32 at, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [at];\n}"
      : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
      : "r"(address), "r"(rank)
      : "memory");
  return v;
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
                                  : LoadCluster4(from + q * 16, p);
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

#endif  // JAX_CONVBATCH_CUDA_HOPPER_DEFORM_KERNEL_CUH_
