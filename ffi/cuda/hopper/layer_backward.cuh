// The kernels of layer_backward.h.
//
// A block goes through tiles of 64 pixels. Its two multiplying warpgroups take
// tiles in turns, each with sums of dw and db of its own. Of a tile that the
// copy engine has brought, a warpgroup sets dy to zero where relu's derivative
// is, adds db on the way, multiplies dz by x for dw and by the filter, which
// stays in shared memory, for dx, and writes dx over x. A second kernel adds
// the blocks' sums in order.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_LAYER_BACKWARD_CUH_
#define JAX_CONVBATCH_CUDA_HOPPER_LAYER_BACKWARD_CUH_

#include <algorithm>

#include "cuda/hopper/epilogue.cuh"
#include "cuda/hopper/layer_backward.h"
#include "cuda/hopper/pipeline.cuh"
#include "cuda/hopper/store_tile.cuh"
#include "cuda/sign_bits.cuh"

namespace jax_convbatch::hopper {

inline constexpr int kBackwardShared = 230000;

struct LayerBackwardProblem {
  CUtensorMap x, dy, w, dx, dz;  // boxes of 64 x 64
  const uint8_t* signs;
  float* pieces;
  int pixels, tiles, blocks;
  bool stores_dz;
};

template <typename T_, int kC_, int kK_>
struct LayerBackwardConfig {
  using T = T_;
  static constexpr int kC = kC_, kK = kK_;
  static constexpr int kCBoxes = kC / 64, kKBoxes = kK / 64;
  // In a stage dy comes before x.
  static constexpr int kDyBytes = kKBoxes * kBoxBytes;
  static constexpr int kStageBytes = (kCBoxes + kKBoxes) * kBoxBytes;
  static constexpr int kSignBytes = kBackwardPixels * kK / 8;
  static constexpr int kFilterBytes = kCBoxes * kKBoxes * kBoxBytes;
  static constexpr int kStages = std::min(
      8, (kBackwardShared - 1024 - kFilterBytes) / (kStageBytes + kSignBytes));
  static constexpr int kSharedBytes =
      1024 + kFilterBytes + kStages * (kStageBytes + kSignBytes);
  // Sums of a thread in quads: of eight columns two, of two rows.
  static constexpr int kQuads = kC * kK / (4 * kWarpgroup);
  // Of a block: dw as the threads have it, then db.
  static constexpr int kPiece = kC * kK + kK;
  static constexpr int kChunks = kK / 8;  // of 16 bytes in a row of dy
  static constexpr int kTeams = kWarpgroup / kChunks;
  static_assert(kStages >= 3 &&
                kC * kK * 4 + 2 * kWarpgroup * 32 <= kStages * kStageBytes);
};

template <typename Config>
struct alignas(8) LayerBackwardBarriers {
  // A stage is full, its dx (and dz) are written, all of it has been read.
  uint64_t full[Config::kStages], written[Config::kStages],
      empty[Config::kStages];
  uint64_t filter;

  __device__ void Init() {  // by one thread
    for (int i = 0; i < Config::kStages; ++i) {
      BarrierInit(SharedAddress(&full[i]), 1);
      BarrierInit(SharedAddress(&written[i]), 4 * Config::kCBoxes);
      BarrierInit(SharedAddress(&empty[i]), 1);
    }
    BarrierInit(SharedAddress(&filter), 1);
    FenceBarrierInit();
  }
};

// Bytes that lie side by side, a multiple of 16.
__device__ __forceinline__ void LoadBytes(uint32_t to, const void* from,
                                          uint32_t barrier, int bytes) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

__device__ __forceinline__ uint32_t LoadSharedByte(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}

// Where a block's shared memory begins: the filter, the ring, the signs.
template <typename Config>
struct LayerBackwardShared {
  uint32_t filter;

  __device__ uint32_t Stage(int stage) const {
    return filter + Config::kFilterBytes + stage * Config::kStageBytes;
  }
  __device__ uint32_t Signs(int stage) const {
    return Stage(Config::kStages) + stage * Config::kSignBytes;
  }
};

template <typename Config>
__device__ __forceinline__ void LoadTiles(
    const LayerBackwardProblem& problem,
    const LayerBackwardShared<Config>& shared,
    LayerBackwardBarriers<Config>& barriers) {
  const uint32_t filter = SharedAddress(&barriers.filter);
  BarrierArriveExpect(filter, Config::kFilterBytes);
  for (int k = 0; k < Config::kKBoxes; ++k) {
    for (int c = 0; c < Config::kCBoxes; ++c) {
      const int box = k * Config::kCBoxes + c;
      LoadTile2(shared.filter + box * kBoxBytes, problem.w, filter, k * 64,
                c * 64);
    }
  }
  RingPosition<Config::kStages> at;
  for (int tile = blockIdx.x; tile < problem.tiles; tile += problem.blocks) {
    const int pixel = tile * kBackwardPixels;
    const uint32_t full = SharedAddress(&barriers.full[at.stage]);
    BarrierWait(SharedAddress(&barriers.empty[at.stage]), at.round ^ 1);
    const int sign_bytes =
        min(kBackwardPixels, problem.pixels - pixel) * (Config::kK / 8);
    BarrierArriveExpect(full, Config::kStageBytes + sign_bytes);
    LoadBytes(shared.Signs(at.stage),
              problem.signs + int64_t{tile} * Config::kSignBytes, full,
              sign_bytes);
    const uint32_t dy = shared.Stage(at.stage);
#pragma unroll
    for (int k = 0; k < Config::kKBoxes; ++k) {
      LoadTile2(dy + k * kBoxBytes, problem.dy, full, k * 64, pixel);
    }
#pragma unroll
    for (int c = 0; c < Config::kCBoxes; ++c) {
      LoadTile2(dy + Config::kDyBytes + c * kBoxBytes, problem.x, full, c * 64,
                pixel);
    }
    at.Advance();
  }
}

template <typename Config>
__device__ __forceinline__ void StoreTiles(
    const LayerBackwardProblem& problem,
    const LayerBackwardShared<Config>& shared,
    LayerBackwardBarriers<Config>& barriers) {
  RingPosition<Config::kStages> at;
  for (int tile = blockIdx.x; tile < problem.tiles; tile += problem.blocks) {
    const int pixel = tile * kBackwardPixels;
    const uint32_t dz = shared.Stage(at.stage);
    BarrierWait(SharedAddress(&barriers.written[at.stage]), at.round);
#pragma unroll
    for (int c = 0; c < Config::kCBoxes; ++c) {
      StoreTile2(problem.dx, dz + Config::kDyBytes + c * kBoxBytes, c * 64,
                 pixel);
    }
    if (problem.stores_dz) {
#pragma unroll
      for (int k = 0; k < Config::kKBoxes; ++k) {
        StoreTile2(problem.dz, dz + k * kBoxBytes, k * 64, pixel);
      }
    }
    StoreCommit();
    StoreWaitRead<0>();
    BarrierArrive(SharedAddress(&barriers.empty[at.stage]));
    at.Advance();
  }
}

// Makes dz of dy, in place, by a warpgroup. A thread has eight channels of
// every kTeams-th pixel.
template <typename Config>
__device__ __forceinline__ void MaskTile(uint32_t dy, uint32_t signs,
                                         int thread, float (&db)[8]) {
  const int chunk = thread % Config::kChunks, team = thread / Config::kChunks;
  const uint32_t box = dy + chunk / 8 * kBoxBytes;
  const uint32_t bits = signs + chunk;
#pragma unroll 4
  for (int row = team; row < kBackwardPixels; row += Config::kTeams) {
    const uint32_t at = box + row * 128 + ((chunk % 8 ^ row % 8) << 4);
    const uint32_t sign = LoadSharedByte(bits + row * Config::kChunks);
    const float4 eight = LoadShared4(at);
    uint32_t v[4] = {__float_as_uint(eight.x), __float_as_uint(eight.y),
                     __float_as_uint(eight.z), __float_as_uint(eight.w)};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[i] &= SignMask<2>(sign, i);
      const float2 pair = Unpack<typename Config::T>(v[i]);
      db[2 * i] += pair.x;
      db[2 * i + 1] += pair.y;
    }
    StoreShared4(at, make_float4(__uint_as_float(v[0]), __uint_as_float(v[1]),
                                 __uint_as_float(v[2]), __uint_as_float(v[3])));
  }
}

// Adds the two warpgroups' sums and writes the block's piece.
template <typename Config>
__device__ __forceinline__ void WriteSums(
    const LayerBackwardProblem& problem, uint32_t ring, int group, int thread,
    const float (&dw)[Config::kCBoxes][Config::kK / 2], const float (&db)[8]) {
  constexpr int kRowQuads = Config::kK / 8;
  auto quad_of = [&](int i) {
    const float* v = &dw[i / kRowQuads][i % kRowQuads * 4];
    return make_float4(v[0], v[1], v[2], v[3]);
  };
  const uint32_t own = ring + thread * 16;
  const uint32_t sums = ring + Config::kC * Config::kK * 4;  // of db
  if (group == 1) {
#pragma unroll
    for (int i = 0; i < Config::kQuads; ++i) {
      StoreShared4(own + i * (kWarpgroup * 16), quad_of(i));
    }
  }
  // [channel of eight][group][team][chunk]
  constexpr int kEach = 2 * kWarpgroup * 4;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    StoreShared1(sums + i * kEach + (group * kWarpgroup + thread) * 4, db[i]);
  }
  NamedBarrier(1, kConsumers * kWarpgroup);
  float* const piece = problem.pieces + int64_t{blockIdx.x} * Config::kPiece;
  if (group == 0) {
#pragma unroll
    for (int i = 0; i < Config::kQuads; ++i) {
      const float4 u = quad_of(i);
      const float4 v = LoadShared4(own + i * (kWarpgroup * 16));
      reinterpret_cast<float4*>(piece)[i * kWarpgroup + thread] =
          make_float4(u.x + v.x, u.y + v.y, u.z + v.z, u.w + v.w);
    }
    return;
  }
  for (int k = thread; k < Config::kK; k += kWarpgroup) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 2 * Config::kTeams; ++i) {
      float v;
      asm volatile(
          "ld.shared.f32 %0, [%1];"
          : "=f"(v)
          : "r"(sums + k % 8 * kEach + (i * Config::kChunks + k / 8) * 4)
          : "memory");
      sum += v;
    }
    piece[Config::kC * Config::kK + k] = sum;
  }
}

template <typename Config>
__device__ __forceinline__ void MultiplyTiles(
    const LayerBackwardProblem& problem,
    const LayerBackwardShared<Config>& shared,
    LayerBackwardBarriers<Config>& barriers, int group, int thread,
    float (&dw)[Config::kCBoxes][Config::kK / 2], float (&db)[8]) {
  using T = typename Config::T;
  constexpr auto kRows = Contiguous::kRows;
  constexpr auto kReduction = Contiguous::kReduction;
  BarrierWait(SharedAddress(&barriers.filter), 0);
  RingPosition<Config::kStages> at;
  at.Skip(group);
  for (int tile = blockIdx.x + group * problem.blocks; tile < problem.tiles;
       tile += kConsumers * problem.blocks) {
    const uint32_t dz = shared.Stage(at.stage), x = dz + Config::kDyBytes;
    BarrierWait(SharedAddress(&barriers.full[at.stage]), at.round);
    MaskTile<Config>(dz, shared.Signs(at.stage), thread, db);
    FenceAsyncProxy();
    NamedBarrier(1 + group, kWarpgroup);
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int m = 0; m < Config::kCBoxes; ++m) {
        Wgmma<T, kRows, kRows, Config::kK>(
            dw[m], Descriptor(x + m * kBoxBytes) + k * kReductionStep<kRows>,
            Descriptor(dz) + k * kReductionStep<kRows>);
      }
    }
    WgmmaCommit();
#pragma unroll
    for (int c = 0; c < Config::kCBoxes; ++c) {
      float dx[1][32];
#pragma unroll
      for (float& v : dx[0]) v = 0.0f;
      WgmmaFence();
#pragma unroll
      for (int k = 0; k < Config::kKBoxes; ++k) {
        const int box = k * Config::kCBoxes + c;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          Wgmma<T, kReduction, kReduction, 64>(
              dx[0],
              Descriptor(dz + k * kBoxBytes) + i * kReductionStep<kReduction>,
              Descriptor(shared.filter + box * kBoxBytes) +
                  i * kReductionStep<kReduction>);
        }
      }
      WgmmaCommit();
      WgmmaWait<0>();  // x too has been multiplied
      WriteTile<T>(dx, x + c * kBoxBytes, &barriers.written[at.stage]);
    }
    at.Skip(kConsumers);
  }
}

template <typename Config>
__global__ void __launch_bounds__(kThreads, 1)
    LayerBackwardKernel(const __grid_constant__ LayerBackwardProblem problem) {
  extern __shared__ uint8_t memory[];
  __shared__ LayerBackwardBarriers<Config> barriers;
  const LayerBackwardShared<Config> shared{(SharedAddress(memory) + 1023) &
                                           ~1023u};
  if (threadIdx.x == 0) barriers.Init();
  if (threadIdx.x == 32) {
    PrefetchMap(problem.dy);
    PrefetchMap(problem.x);
    PrefetchMap(problem.w);
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    GiveRegisters<kProducerRegisters>();
    const int warp = threadIdx.x / 32;
    if (warp == 0 && ElectOne()) LoadTiles<Config>(problem, shared, barriers);
    if (warp == 1 && ElectOne()) StoreTiles<Config>(problem, shared, barriers);
    __syncwarp();
    __syncthreads();
    LaunchDependents();
    return;
  }
  TakeRegisters<kConsumerRegisters>();
  const int thread = threadIdx.x % kWarpgroup;
  const int group = __shfl_sync(~0u, threadIdx.x / kWarpgroup - 1, 0);
  float dw[Config::kCBoxes][Config::kK / 2], db[8] = {};
#pragma unroll
  for (int m = 0; m < Config::kCBoxes; ++m) {
#pragma unroll
    for (float& v : dw[m]) v = 0.0f;
  }
  MultiplyTiles<Config>(problem, shared, barriers, group, thread, dw, db);
  __syncthreads();  // nobody uses the ring any more
  WriteSums<Config>(problem, shared.Stage(0), group, thread, dw, db);
}

inline constexpr int kSumQuads = 32, kSumLanes = 8;

// Adds the blocks' pieces in order, a quad by kSumLanes threads.
template <typename Config>
__global__ void __launch_bounds__(kSumQuads* kSumLanes)
    AddLayerSums(const float* __restrict__ pieces, int blocks,
                 typename Config::T* __restrict__ dw,
                 typename Config::T* __restrict__ db) {
  using T = typename Config::T;
  constexpr int kOfDw = Config::kC * Config::kK / 4;
  constexpr int kAll = Config::kPiece / 4;
  const int quad = blockIdx.x * kSumQuads + threadIdx.x % kSumQuads;
  const int lane = threadIdx.x / kSumQuads;
  WaitForPrimary();
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  auto add = [&](const float4& v) {
    sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
  };
  if (quad < kAll) {
    const float4* from = reinterpret_cast<const float4*>(pieces) + quad;
#pragma unroll 8
    for (int b = lane; b < blocks; b += kSumLanes) add(from[int64_t{b} * kAll]);
  }
  __shared__ float4 shared[kSumLanes][kSumQuads];
  shared[lane][threadIdx.x % kSumQuads] = sum;
  __syncthreads();
  if (lane > 0 || quad >= kAll) return;
#pragma unroll
  for (int i = 1; i < kSumLanes; ++i) add(shared[i][threadIdx.x]);
  const uint32_t first = Pack<T>(sum.x, sum.y), second = Pack<T>(sum.z, sum.w);
  if (quad >= kOfDw) {
    reinterpret_cast<uint2*>(db)[quad - kOfDw] = make_uint2(first, second);
    return;
  }
  const int thread = quad % kWarpgroup, i = quad / kWarpgroup;
  const int c = i / (Config::kK / 8) * 64 + thread / 32 * 16 + thread % 32 / 4;
  const int k = i % (Config::kK / 8) * 8 + thread % 4 * 2;
  auto* to = reinterpret_cast<uint32_t*>(dw + c * Config::kK + k);
  to[0] = first;
  to[8 * Config::kK / 2] = second;
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_LAYER_BACKWARD_CUH_
