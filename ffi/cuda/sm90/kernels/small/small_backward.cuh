// SPDX-License-Identifier: Apache-2.0
// The backward pass of a small f32 layer in one kernel: 3x3 filters, outputs as
// large as the image, 16 or 32 channels on either side, relu's bitmask.
//
// A tile is a few whole images: TMA brings dy, and x rounded, to two grids of
// places (small_grid.cuh) while the tile before is multiplied; then threads
// multiply dy by relu's derivative where it lies, and round it. One warpgroup
// multiplies dz by the filter, from shared memory; the other keeps dw in
// registers and multiplies x by dz, eight places at a time.
//
// dx has the bits of small_grid_conv.cuh. A block adds dw of all its tiles in
// order; a second kernel adds the blocks'.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_SMALL_SMALL_BACKWARD_CUH_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_SMALL_SMALL_BACKWARD_CUH_

#include "cuda/common/dependent_launch.cuh"
#include "cuda/common/relu_bitmask.cuh"
#include "cuda/sm90/kernels/small/small_backward.h"
#include "cuda/sm90/kernels/small/small_grid.cuh"

namespace jax_convbatch::hopper {

template <int kC_, int kK_>
struct SmallBackwardConfig {
  static constexpr int kC = kC_, kK = kK_;
  static constexpr int kThreads = kSmallBackwardThreads;
  static constexpr int kWarps = kThreads / 32;
  using Filter = GridFilter<kK, kC, true>;
  // Of dw: what a warp has of it, 16 kDown x 8 kAcross for each tap; warps that
  // share that, and the eights of places.
  static constexpr int kShares = kC * kK / 512;
  static constexpr int kDown = kC / 16 / kShares, kAcross = kK / 8;
  static constexpr int kDwTeams = kWarps / 2 / kShares;
  // Fours that a thread has of a tile's dy.
  static constexpr int kFoursEach = (kMostSmallFours + kThreads - 1) / kThreads;
  static constexpr int kSums = 9 * kC * kK;
  static constexpr int kPartial = kSums + kK;  // dw, then db
  // What a block adds up when it is done.
  static constexpr int kEndWords = kSums + 4 * kThreads;
  // Fours of dw that a thread has.
  static constexpr int kQuads = 9 * kDown * kAcross;
};

struct SmallBackwardProblem {
  CUtensorMap dy, x;
  const float* w;
  const uint8_t* bitmask;
  float *dx, *dz, *partials;  // dz or null
  int N, H, W;
  SmallGrid grid;
  int tiles;
};

// A block's shared memory: the filter; the grids of dz and x, twice; a barrier
// for each; the pixels of places.
template <typename Config>
struct SmallBackwardShared {
  float *filter, *stages;
  int stage_words, x_words;  // of a stage, and before x
  uint64_t* full;
  int16_t* pixel_of;

  __device__ SmallBackwardShared(float* memory, const SmallGrid& grid)
      : filter(memory),
        stages(memory + Config::kSums),
        stage_words(grid.words(Config::kK) + grid.words(Config::kC)),
        x_words(grid.words(Config::kK)),
        full(reinterpret_cast<uint64_t*>(
            stages + max(2 * stage_words, Config::kEndWords))),
        pixel_of(reinterpret_cast<int16_t*>(full + 2)) {}
  __device__ float* dz(int stage) const { return stages + stage * stage_words; }
  __device__ float* x(int stage) const { return dz(stage) + x_words; }
};

// Goes through a block's tiles: Begin(), Finish(), then while there() what
// multiplies and Next(). Both warpgroups do, each in code of its own, as their
// registers would not hold what both keep.
template <typename Config>
struct SmallBackwardLoop {
  static constexpr int kFours = Config::kK / 4;

  const SmallBackwardProblem& p;
  const SmallBackwardShared<Config>& shared;
  int tile = blockIdx.x, stage = 0;
  uint32_t round = 0;
  float db[4] = {};
  // The byte with the bitmask of each of the thread's fours of a tile's dy.
  // They are those at threadIdx.x and every kThreads-th from there on, so that
  // all are of the same channels.
  uint8_t bitmask[Config::kFoursEach];

  __device__ bool there() const { return tile < p.tiles; }
  __device__ int64_t first() const {  // pixel
    return int64_t{tile} * p.grid.images * p.H * p.W;
  }
  __device__ int pixels() const {
    return min(p.grid.images, p.N - tile * p.grid.images) * p.H * p.W;
  }
  // The thread's channels, by fours; grid.first is a multiple of 8.
  __device__ static int Four() {
    return Swizzled<Config::kK>(threadIdx.x / kFours % 8, threadIdx.x % kFours);
  }

  __device__ __forceinline__ void Fetch(int of, int to) {  // by one thread
    if (of >= p.tiles) return;
    const uint32_t barrier = SharedAddress(&shared.full[to]);
    const int first = p.grid.first, image = of * p.grid.images;
    BarrierArriveExpect(barrier, p.grid.box * (Config::kK + Config::kC) * 4);
    LoadTile4(SharedAddress(shared.dz(to) + first * Config::kK), p.dy, barrier,
              0, 0, 0, image);
    LoadTile4(SharedAddress(shared.x(to) + first * Config::kC), p.x, barrier, 0,
              0, 0, image);
  }
  __device__ __forceinline__ int PixelOf(int j) const {
    const int place = (threadIdx.x + j * Config::kThreads) / kFours;
    return place < p.grid.box ? shared.pixel_of[p.grid.first + place] : -1;
  }
  __device__ __forceinline__ void LoadBitmask() {  // of `tile`
    const uint8_t* const from =
        p.bitmask + first() * (Config::kK / 8) + Four() / 2;
    const int count = pixels();
#pragma unroll
    for (int j = 0; j < Config::kFoursEach; ++j) {
      const int pixel = PixelOf(j);
      bitmask[j] = pixel >= 0 && pixel < count
                       ? __ldg(from + pixel * (Config::kK / 8))
                       : 0;
    }
  }
  // Makes dz of what came for `tile`, adds db, stores dz where it is wanted.
  __device__ __forceinline__ void Mask() {
    float4* const grid =
        reinterpret_cast<float4*>(shared.dz(stage) + p.grid.first * Config::kK);
    float4* const dz = p.dz == nullptr ? nullptr
                                       : reinterpret_cast<float4*>(p.dz) +
                                             first() * kFours + Four();
    const int count = p.grid.box * kFours;
#pragma unroll
    for (int j = 0; j < Config::kFoursEach; ++j) {
      const int i = threadIdx.x + j * Config::kThreads;
      if (i >= count) break;
      const uint32_t four = bitmask[j] >> Four() % 2 * 4;
      float4 v = grid[i];
      auto mask = [&](float& value, int bit) {
        value =
            __uint_as_float(__float_as_uint(value) & ReluMask<4>(four, bit));
      };
      mask(v.x, 0), mask(v.y, 1), mask(v.z, 2), mask(v.w, 3);
      db[0] += v.x, db[1] += v.y, db[2] += v.z, db[3] += v.w;
      grid[i] = RoundTf32(v);
      if (dz == nullptr) continue;
      const int pixel = PixelOf(j);
      if (pixel >= 0 && pixel < pixels()) dz[pixel * kFours] = v;
    }
  }
  // Readies `tile`, and asks for the bitmask of the next.
  __device__ __forceinline__ void Finish() {
    if (there()) {
      BarrierWait(SharedAddress(&shared.full[stage]), round);
      Mask();
      FenceAsyncProxy();
      tile += gridDim.x;
      if (there()) LoadBitmask();
      tile -= gridDim.x;
    }
    NamedBarrier(1, Config::kThreads);
  }
  __device__ __forceinline__ void Next() {
    const int done = stage;
    tile += gridDim.x;
    round ^= stage;
    stage ^= 1;
    Finish();
    if (threadIdx.x == 0) Fetch(tile + gridDim.x, done);
  }
};

// dx of the tiles.
template <typename Config>
__device__ __forceinline__ void MultiplyFilter(
    SmallBackwardLoop<Config>& loop) {
  using Filter = typename Config::Filter;
  constexpr int kC = Config::kC;
  const SmallBackwardProblem& p = loop.p;
  loop.Finish();
  for (; loop.there(); loop.Next()) {
    const int there = loop.pixels();
    float* const dx = p.dx + loop.first() * kC + Filter::First();
    Filter::ForBlocks(p.grid, SharedAddress(loop.shared.dz(loop.stage)),
                      SharedAddress(loop.shared.filter), p.W, 0, 1,
                      [&](int place, const float (&v)[Filter::kEach]) {
                        const int pixel = loop.shared.pixel_of[place];
                        if (pixel >= 0 && pixel < there)
                          StoreFours(dx + pixel * kC, v);
                      });
  }
}

template <typename Config>
using SmallBackwardSums = float[9][Config::kDown][Config::kAcross][4];

// A warp's share of dw.
template <typename Config>
__device__ __forceinline__ void MultiplyInput(SmallBackwardLoop<Config>& loop,
                                              int share, int team,
                                              SmallBackwardSums<Config>& sums) {
  constexpr int kC = Config::kC, kK = Config::kK;
  const SmallBackwardProblem& p = loop.p;
  const int lane = threadIdx.x % 32;
  // Of a product's eight places lane l has 2 (l % 4) and the next: so no two
  // lanes' dz meet in a bank.
  const int place = p.grid.first + team * 8 + lane % 4 * 2;
  auto word = [&](auto channels, int of) {
    constexpr int kChannels = decltype(channels)::value;
    return of * kChannels + Swizzled<kChannels>(of, lane / 16) * 4 +
           lane / 4 % 4;
  };
  const std::integral_constant<int, kK> of_dz;
  const std::integral_constant<int, kC> of_x;
  const int from_dz[2] = {word(of_dz, place), word(of_dz, place + 1)};
  int from_x[9][2];
#pragma unroll
  for (int tap = 0; tap < 9; ++tap) {
    const int of = place + (tap / 3 - 1) * (p.W + 1) + tap % 3 - 1;
    from_x[tap][0] = word(of_x, of) ^ share * Config::kDown * 16;
    from_x[tap][1] = word(of_x, of + 1) ^ share * Config::kDown * 16;
  }
  loop.Finish();
  for (; loop.there(); loop.Next()) {
    const float* dz = loop.shared.dz(loop.stage);
    const float* x = loop.shared.x(loop.stage);
    for (int step = team; step * 8 < p.grid.span; step += Config::kDwTeams) {
      float b[Config::kAcross][2];
#pragma unroll
      for (int n = 0; n < Config::kAcross; ++n) {
        b[n][0] = dz[from_dz[0] ^ n * 8], b[n][1] = dz[from_dz[1] ^ n * 8];
      }
#pragma unroll
      for (int tap = 0; tap < 9; ++tap) {
#pragma unroll
        for (int m = 0; m < Config::kDown; ++m) {
          const int low = from_x[tap][0] ^ m * 16;
          const int high = from_x[tap][1] ^ m * 16;
          const float a0 = x[low], a1 = x[low ^ 8];
          const float a2 = x[high], a3 = x[high ^ 8];
#pragma unroll
          for (int n = 0; n < Config::kAcross; ++n) {
            MultiplyTf32(sums[tap][m][n], a0, a1, a2, a3, b[n][0], b[n][1]);
          }
        }
      }
      dz += Config::kDwTeams * 8 * kK;
      x += Config::kDwTeams * 8 * kC;
    }
  }
}

// Writes the block's partial, in shared memory first: the teams' sums one after
// the other. dw lies as a warp has it, see AddSmallPartials. `sums`: of the
// warps that have dw.
template <typename Config>
__device__ __forceinline__ void WriteSmallTeams(
    float* all, int share, int team, const SmallBackwardSums<Config>& sums) {
  constexpr int kDown = Config::kDown, kAcross = Config::kAcross;
  float4* const own = reinterpret_cast<float4*>(all) +
                      share * Config::kQuads * 32 + threadIdx.x % 32;
  for (int turn = 0; turn < Config::kDwTeams; ++turn) {
    if (turn == team) {
#pragma unroll
      for (int i = 0; i < Config::kQuads; ++i) {
        const auto& v =
            sums[i / (kDown * kAcross)][i / kAcross % kDown][i % kAcross];
        float4 sum = make_float4(v[0], v[1], v[2], v[3]);
        if (turn > 0) {
          const float4 before = own[i * 32];
          sum = make_float4(before.x + sum.x, before.y + sum.y,
                            before.z + sum.z, before.w + sum.w);
        }
        own[i * 32] = sum;
      }
    }
    NamedBarrier(2, Config::kThreads / 2);
  }
}

template <typename Config>
__device__ __forceinline__ void WriteSmallPartial(const float* all, float* to) {
  constexpr int kK = Config::kK;
  const float* const of_db = all + Config::kSums;
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
__global__ void __launch_bounds__(Config::kThreads, 1)
    SmallBackwardKernel(const __grid_constant__ SmallBackwardProblem p) {
  extern __shared__ __align__(1024) float small_backward_shared[];
  const SmallBackwardShared<Config> shared(small_backward_shared, p.grid);
  SmallBackwardLoop<Config> loop = {p, shared};
  if (threadIdx.x == 0) {
    BarrierInit(SharedAddress(&shared.full[0]), 1);
    BarrierInit(SharedAddress(&shared.full[1]), 1);
    FenceBarrierInit();
    loop.Fetch(loop.tile, 0);
    loop.Fetch(loop.tile + gridDim.x, 1);
  }
  Config::Filter::template Load<Config::kThreads>(p.w, shared.filter);
  for (int stage = 0; stage < 2; ++stage) {
    ClearBorders<Config::kThreads>(p.grid, Config::kK, shared.dz(stage));
    ClearBorders<Config::kThreads>(p.grid, Config::kC, shared.x(stage));
  }
  FillPixels<Config::kThreads>(p.grid, p.H, p.W, shared.pixel_of);
  FenceAsyncProxy();
  __syncthreads();
  loop.LoadBitmask();
  float* const of_db = shared.stages + Config::kSums;
  auto write_db = [&] {  // as if its fours were in order
    constexpr int kFours = Config::kK / 4;
    const int at = threadIdx.x / kFours * kFours + loop.Four();
    reinterpret_cast<float4*>(of_db)[at] =
        make_float4(loop.db[0], loop.db[1], loop.db[2], loop.db[3]);
  };
  const int warp = threadIdx.x / 32;
  if (warp < Config::kWarps / 2) {
    MultiplyFilter(loop);
    write_db();
  } else {
    const int share = warp % Config::kShares;
    const int team = (warp - Config::kWarps / 2) / Config::kShares;
    SmallBackwardSums<Config> sums = {};
    MultiplyInput(loop, share, team, sums);
    LaunchDependents();
    WriteSmallTeams<Config>(shared.stages, share, team, sums);
    write_db();
  }
  __syncthreads();
  WriteSmallPartial<Config>(
      shared.stages, p.partials + int64_t{blockIdx.x} * Config::kPartial);
}

inline constexpr int kAddColumns = 32, kAddTeams = 8;

// Adds the blocks' partials in order, four neighbouring sums by kAddTeams
// threads.
template <typename Config>
__global__ void __launch_bounds__(kAddColumns* kAddTeams)
    AddSmallPartials(const float* __restrict__ partials, int blocks,
                     float* __restrict__ dw, float* __restrict__ db) {
  constexpr int kAll = Config::kPartial / 4;
  const int column = threadIdx.x % kAddColumns;
  const int quad = blockIdx.x * kAddColumns + column;
  const int team = threadIdx.x / kAddColumns;
  WaitForPrimary();
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  auto add = [&](const float4& v) {
    sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
  };
  if (quad < kAll) {
    const float4* from = reinterpret_cast<const float4*>(partials) + quad;
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
  // Of a warp's product: two neighbouring output channels of an input channel,
  // and of that 8 further on.
  constexpr int kDown = Config::kDown, kAcross = Config::kAcross;
  const int lane = quad % 32, i = quad / 32 % Config::kQuads;
  const int share = quad / 32 / Config::kQuads;
  const int tap = i / (kAcross * kDown);
  const int c = (share * kDown + i / kAcross % kDown) * 16 + lane / 4;
  const int k = i % kAcross * 8 + lane % 4 * 2;
  float* const to = dw + (tap * Config::kC + c) * Config::kK + k;
  *reinterpret_cast<float2*>(to) = make_float2(sum.x, sum.y);
  *reinterpret_cast<float2*>(to + 8 * Config::kK) = make_float2(sum.z, sum.w);
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_SMALL_SMALL_BACKWARD_CUH_
