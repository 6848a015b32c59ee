// The backward pass of a small f32 layer in one kernel: 3x3 filters, outputs as
// large as the image, 16 or 32 channels on either side, relu's signs.
//
// A tile is a few whole images. The copy engine brings dy and x as they are;
// threads write them, dy times relu's derivative, to two grids of places
// (small_grid.cuh). Then warps multiply by mma.sync, for dx sixteen places at a
// time, for dw eight, each warp one filter row. Meanwhile the next tile's bytes
// come.
//
// dx has the bits of small_tf32.cuh. A block adds dw of all its tiles in
// registers, in order; a second kernel adds the blocks'.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_SMALL_BACKWARD_CUH_
#define JAX_CONVBATCH_CUDA_HOPPER_SMALL_BACKWARD_CUH_

#include "cuda/hopper/small_backward.h"
#include "cuda/hopper/small_grid.cuh"
#include "cuda/sign_bits.cuh"

namespace jax_convbatch::hopper {

template <int kC_, int kK_>
struct SmallBackwardConfig {
  static constexpr int kC = kC_, kK = kK_;
  static constexpr int kBlocks = kC + kK < 64 ? 2 : 1;  // of a multiprocessor
  // That share a tile's places for dw: as many as leave registers enough.
  static constexpr int kTeams = kBlocks == 2 ? 3 : 4;
  static constexpr int kWarps = 3 * kTeams, kThreads = 32 * kWarps;
  // Pairs of bytes of signs that a thread loads.
  static constexpr int kSignsEach = kMostSmallFours / 4 / kThreads + 1;
  static constexpr int kSums = 9 * kC * kK;
  static constexpr int kPiece = kSums + kK;  // dw, then db
  // Fours of dw that a thread has.
  static constexpr int kQuads = 3 * (kC / 16) * (kK / 8);
};

struct SmallBackwardProblem {
  const float *x, *w, *dy;
  const uint8_t* signs;
  float *dx, *dz, *pieces;  // dz or null
  int N, H, W;
  SmallGrid grid;
  int tiles;
};

// A block's shared memory: the filter, the grids of dz and x, what the copy
// engine brings, the signs, the grid's places of pixels and the other way
// round.
template <typename Config>
struct SmallBackwardShared {
  float *filter, *dz, *x, *dy_in, *x_in;
  uint8_t* signs;
  int16_t *place_of, *pixel_of;

  __device__ SmallBackwardShared(float* memory, const SmallGrid& grid)
      : filter(memory),
        dz(filter + Config::kSums),
        x(dz + grid.places * Config::kK),
        dy_in(x + grid.places * Config::kC),
        x_in(dy_in + grid.pixels * Config::kK),
        signs(reinterpret_cast<uint8_t*>(x_in + grid.pixels * Config::kC)),
        place_of(reinterpret_cast<int16_t*>(signs + kMostSmallFours / 2)),
        pixel_of(place_of + grid.pixels) {}
};

// The signs of a tile on their way to shared memory, by all threads; what is
// not there is 0.
template <typename Config>
struct TileSigns {
  uint16_t pairs[Config::kSignsEach];

  __device__ __forceinline__ void Load(const SmallBackwardProblem& p,
                                       int tile) {
    const int first = tile * p.grid.images;
    const int count =
        min(p.grid.images, p.N - first) * p.H * p.W * (Config::kK / 16);
    const auto* const from = reinterpret_cast<const uint16_t*>(p.signs) +
                             int64_t{first} * p.H * p.W * (Config::kK / 16);
#pragma unroll
    for (int j = 0; j < Config::kSignsEach; ++j) {
      const int i = threadIdx.x + j * Config::kThreads;
      pairs[j] = i < count ? __ldg(from + i) : 0;
    }
  }
  __device__ __forceinline__ void Store(uint8_t* to) const {
#pragma unroll
    for (int j = 0; j < Config::kSignsEach; ++j) {
      const int i = threadIdx.x + j * Config::kThreads;
      if (i < kMostSmallFours / 4)
        reinterpret_cast<uint16_t*>(to)[i] = pairs[j];
    }
  }
};

// Fills the grids from what the copy engine brought, adds db, stores dz.
template <typename Config>
__device__ __forceinline__ void FillGrids(
    const SmallBackwardProblem& p, const SmallBackwardShared<Config>& shared,
    int tile, float (&db)[4]) {
  constexpr int kDyChunks = Config::kK / 4, kXChunks = Config::kC / 4;
  const int first = tile * p.grid.images;
  const int there = min(p.grid.images, p.N - first) * p.H * p.W;
  float4* const dz = p.dz == nullptr
                         ? nullptr
                         : reinterpret_cast<float4*>(
                               p.dz + int64_t{first} * p.H * p.W * Config::kK);
#pragma unroll 2
  for (int i = threadIdx.x; i < p.grid.pixels * kDyChunks;
       i += Config::kThreads) {
    const int pixel = i / kDyChunks, chunk = i % kDyChunks;
    const uint32_t signs = shared.signs[i / 2] >> i % 2 * 4;
    // What the signs' zeros leave of what is not there is 0.
    const float4 dy = reinterpret_cast<const float4*>(shared.dy_in)[i];
    auto mask = [&](float v, int bit) {
      return __uint_as_float(__float_as_uint(v) & SignMask<4>(signs, bit));
    };
    const float4 v =
        make_float4(mask(dy.x, 0), mask(dy.y, 1), mask(dy.z, 2), mask(dy.w, 3));
    db[0] += v.x, db[1] += v.y, db[2] += v.z, db[3] += v.w;
    if (dz != nullptr && pixel < there) dz[i] = v;
    const int place = shared.place_of[pixel];
    StoreOrdered<Config::kK>(shared.dz, place, chunk, v);
  }
#pragma unroll 2
  for (int i = threadIdx.x; i < p.grid.pixels * kXChunks;
       i += Config::kThreads) {
    const int pixel = i / kXChunks;
    const float4 v = pixel < there
                         ? reinterpret_cast<const float4*>(shared.x_in)[i]
                         : make_float4(0, 0, 0, 0);
    const int place = shared.place_of[pixel];
    reinterpret_cast<float4*>(
        shared
            .x)[place * kXChunks + (i % kXChunks ^ Turned<Config::kC>(place))] =
        RoundTf32(v);
  }
}

// dx of the tile: sixteen places at a time, in the order of small_tf32.cuh.
template <typename Config>
__device__ __forceinline__ void MultiplyFilter(
    const SmallBackwardProblem& p, const SmallBackwardShared<Config>& shared,
    int tile) {
  constexpr int kC = Config::kC, kK = Config::kK, kBlocks = kC / 8;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first = tile * p.grid.images;
  const int there = min(p.grid.images, p.N - first) * p.H * p.W;
  float* const dx = p.dx + int64_t{first} * p.H * p.W * kC;
  for (int m = warp; m < p.grid.sixteens; m += Config::kWarps) {
    const int place = p.grid.first + m * 16;
    float sums[2][kBlocks][4] = {};
    MultiplySixteen<kK, kC>(SharedAddress(shared.dz), shared.filter, place, p.W,
                            sums);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int pixel = shared.pixel_of[place + lane / 4 + half * 8];
      if (pixel < 0 || pixel >= there) continue;
#pragma unroll
      for (int j = 0; j < kBlocks; ++j) {
        const int i = half * 2;
        *reinterpret_cast<float2*>(dx + pixel * kC + j * 8 + lane % 4 * 2) =
            make_float2(sums[0][j][i] + sums[1][j][i],
                        sums[0][j][i + 1] + sums[1][j][i + 1]);
      }
    }
  }
}

template <typename Config>
using SmallBackwardSums = float[3][Config::kC / 16][Config::kK / 8][4];

// A warp's share of the tile's dw: filter row `filter_row`, places of `team`.
template <typename Config>
__device__ __forceinline__ void MultiplyInput(
    const SmallBackwardProblem& p, const SmallBackwardShared<Config>& shared,
    int filter_row, int team, SmallBackwardSums<Config>& sums) {
  constexpr int kC = Config::kC, kK = Config::kK;
  const int lane = threadIdx.x % 32;
  // Eight places more are turned alike, four the other way by one.
  const int place = p.grid.first + team * 8 + lane % 4;
  const int from_dz = WordAt<kK>(place, lane / 4);
  int from_x[3];
#pragma unroll
  for (int s = 0; s < 3; ++s) {
    from_x[s] =
        WordAt<kC>(place + (filter_row - 1) * (p.W + 1) + s - 1, lane / 4);
  }
  const float *dz = shared.dz, *x = shared.x;
  for (int step = team; step < p.grid.sixteens * 2; step += Config::kTeams) {
    float b[kK / 8][2];
#pragma unroll
    for (int n = 0; n < kK / 8; ++n) {
      b[n][0] = dz[from_dz ^ n * 8];
      b[n][1] = dz[(from_dz ^ n * 8 ^ 4) + 4 * kK];
    }
#pragma unroll
    for (int s = 0; s < 3; ++s) {
#pragma unroll
      for (int m = 0; m < kC / 16; ++m) {
        const int at = from_x[s] ^ m * 16;
        const float a0 = x[at], a1 = x[at ^ 8];
        const float a2 = x[(at ^ 4) + 4 * kC], a3 = x[(at ^ 12) + 4 * kC];
#pragma unroll
        for (int n = 0; n < kK / 8; ++n) {
          MultiplyTf32(sums[s][m][n], a0, a1, a2, a3, b[n][0], b[n][1]);
        }
      }
    }
    dz += Config::kTeams * 8 * kK;
    x += Config::kTeams * 8 * kC;
  }
}

// Writes the block's piece, in shared memory first: the teams' sums one after
// the other. dw lies as a warp has it, see AddSmallPieces.
template <typename Config>
__device__ __forceinline__ void WriteSmallSums(
    const SmallBackwardShared<Config>& shared, int filter_row, int team,
    const SmallBackwardSums<Config>& sums, const float (&db)[4], float* to) {
  constexpr int kC = Config::kC, kK = Config::kK;
  constexpr int kQuads = Config::kQuads;
  float* const all = shared.filter;
  float* const of_db = all + Config::kSums;
  reinterpret_cast<float4*>(of_db)[threadIdx.x] =
      make_float4(db[0], db[1], db[2], db[3]);
  float4* const own = reinterpret_cast<float4*>(all) +
                      filter_row * kQuads * 32 + threadIdx.x % 32;
  for (int turn = 0; turn < Config::kTeams; ++turn) {
    if (turn == team) {
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        const auto& v = sums[i / (kC / 16 * (kK / 8))][i / (kK / 8) % (kC / 16)]
                            [i % (kK / 8)];
        float4 sum = make_float4(v[0], v[1], v[2], v[3]);
        if (turn > 0) {
          const float4 before = own[i * 32];
          sum = make_float4(before.x + sum.x, before.y + sum.y,
                            before.z + sum.z, before.w + sum.w);
        }
        own[i * 32] = sum;
      }
    }
    __syncthreads();
  }
  for (int i = threadIdx.x; i < Config::kSums / 4; i += Config::kThreads) {
    reinterpret_cast<float4*>(to)[i] = reinterpret_cast<const float4*>(all)[i];
  }
  if (threadIdx.x >= kK) return;
  float sum = 0.0f;
  for (int i = threadIdx.x / 4; i < Config::kThreads; i += kK / 4) {
    sum += of_db[i * 4 + threadIdx.x % 4];
  }
  to[Config::kSums + threadIdx.x] = sum;
}

template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocks)
    SmallBackwardKernel(const __grid_constant__ SmallBackwardProblem p) {
  extern __shared__ __align__(128) float small_backward_shared[];
  __shared__ uint64_t full;
  const SmallBackwardShared<Config> shared(small_backward_shared, p.grid);
  const SmallGrid& grid = p.grid;
  const uint32_t barrier = SharedAddress(&full);
  auto fetch = [&](int tile) {  // by one thread
    const int first = tile * grid.images;
    const int pixels = min(grid.images, p.N - first) * p.H * p.W;
    const int64_t from = int64_t{first} * p.H * p.W;
    BarrierArriveExpect(barrier, pixels * (Config::kC + Config::kK) * 4);
    LoadBytes(SharedAddress(shared.dy_in), p.dy + from * Config::kK, barrier,
              pixels * Config::kK * 4);
    LoadBytes(SharedAddress(shared.x_in), p.x + from * Config::kC, barrier,
              pixels * Config::kC * 4);
  };
  if (threadIdx.x == 0) {
    BarrierInit(barrier, 1);
    FenceBarrierInit();
    fetch(blockIdx.x);
  }
  TileSigns<Config> signs;
  signs.Load(p, blockIdx.x);
  signs.Store(shared.signs);
  LoadGridFilter<Config::kK, Config::kC, Config::kThreads, true>(p.w,
                                                                 shared.filter);
  for (int i = threadIdx.x; i < grid.places * ((Config::kC + Config::kK) / 4);
       i += Config::kThreads) {
    reinterpret_cast<float4*>(shared.dz)[i] = make_float4(0, 0, 0, 0);
  }
  FillTables<Config::kThreads>(grid, p.H, p.W, shared.place_of,
                               shared.pixel_of);
  __syncthreads();

  const int warp = threadIdx.x / 32;
  const int filter_row = warp % 3, team = warp / 3;
  SmallBackwardSums<Config> sums = {};
  float db[4] = {};
  uint32_t round = 0;
  for (int tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
    BarrierWait(barrier, round);
    round ^= 1;
    FillGrids<Config>(p, shared, tile, db);
    __syncthreads();
    const int next = tile + gridDim.x;
    if (next < p.tiles) {
      if (threadIdx.x == 0) fetch(next);
      signs.Load(p, next);
    }
    MultiplyFilter<Config>(p, shared, tile);
    if (next < p.tiles) signs.Store(shared.signs);
    MultiplyInput<Config>(p, shared, filter_row, team, sums);
    __syncthreads();
  }
  LaunchDependents();
  WriteSmallSums<Config>(shared, filter_row, team, sums, db,
                         p.pieces + int64_t{blockIdx.x} * Config::kPiece);
}

inline constexpr int kAddColumns = 32, kAddTeams = 8;

// Adds the blocks' pieces in order, four neighbouring sums by kAddTeams
// threads.
template <typename Config>
__global__ void __launch_bounds__(kAddColumns* kAddTeams)
    AddSmallPieces(const float* __restrict__ pieces, int blocks,
                   float* __restrict__ dw, float* __restrict__ db) {
  constexpr int kAll = Config::kPiece / 4;
  const int column = threadIdx.x % kAddColumns;
  const int quad = blockIdx.x * kAddColumns + column;
  const int team = threadIdx.x / kAddColumns;
  WaitForPrimary();
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  auto add = [&](const float4& v) {
    sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
  };
  if (quad < kAll) {
    const float4* from = reinterpret_cast<const float4*>(pieces) + quad;
#pragma unroll 8
    for (int b = team; b < blocks; b += kAddTeams) {
      add(from[int64_t{b} * kAll]);
    }
  }
  __shared__ float4 shared[kAddTeams][kAddColumns];
  shared[team][column] = sum;
  __syncthreads();
  if (team > 0 || quad >= kAll) return;
#pragma unroll
  for (int i = 1; i < kAddTeams; ++i) add(shared[i][column]);
  if (quad >= Config::kSums / 4) {
    reinterpret_cast<float4*>(db)[quad - Config::kSums / 4] = sum;
    return;
  }
  // Of a warp's product: two neighbouring words of an input channel, and of
  // that 8 further on.
  constexpr int kAcross = Config::kK / 8, kDown = Config::kC / 16;
  const int lane = quad % 32, i = quad / 32;
  const int tap = i / (kAcross * kDown);
  const int c = i / kAcross % kDown * 16 + lane / 4;
  const int word = i % kAcross * 8 + lane % 4 * 2;
  float* const to = dw + (tap * Config::kC + c) * Config::kK;
  to[ChannelOf(word)] = sum.x;
  to[ChannelOf(word + 1)] = sum.y;
  to[8 * Config::kK + ChannelOf(word)] = sum.z;
  to[8 * Config::kK + ChannelOf(word + 1)] = sum.w;
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_SMALL_BACKWARD_CUH_
