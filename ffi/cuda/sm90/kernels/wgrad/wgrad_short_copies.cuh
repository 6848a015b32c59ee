// SPDX-License-Identifier: Apache-2.0
// What a block of wgrad_short_kernel.cuh has to do, and how it copies that.
#pragma once

#include "cuda/sm90/copy/pipeline.cuh"
#include "cuda/sm90/kernels/wgrad/wgrad_kernel.cuh"
#include "cuda/sm90/kernels/wgrad/wgrad_short_problem.h"
#include "cuda/sm90/kernels/wgrad/wgrad_short_tiling.h"
#include "cuda/sm90/problem/wgrad_tiling.h"

namespace jax_convbatch::hopper {

// kM filter rows by kN output channels, of which a warpgroup has 64, by all
// filter rows or, of kGroupsM warpgroups, each by some. kTapRow: the filter
// rows are 32 channels of a row of three taps, see WgradRowProblem.
template <typename T_, int kM_, int kN_, int kGroupsM_ = 1>
struct WgradShortConfig {
  using T = T_;
  static constexpr bool kTapRow = kM_ == kTapRowM;
  using Problem =
      std::conditional_t<kTapRow, WgradRowProblem, WgradShortProblem>;
  static constexpr int kM = kM_, kN = kN_, kGroupsM = kGroupsM_;
  static constexpr WgradShortTile kTile = WgradShortTileOf(kM, kN);
  static constexpr int kStages = kTile.stages;
  static constexpr int kGroups = kGroupsM * kN / 64;
  static constexpr int kConsumed = kGroups * kWarpgroup;
  static constexpr int kThreads = kConsumed + kStages * 32;
  static constexpr int kColumns = kM / kGroupsM;  // of a warpgroup's product
  // Channels of a box of x: rows of 128 or 64 bytes.
  static constexpr int kChannels = kTapRow ? 32 : 64;
  static constexpr int kLine = kChannels * 2;
  static constexpr int kBlocks = kM / kChannels;  // of filter rows
  // Pixels of a step.
  static constexpr int kPixels = kTapRow ? kTapRowStrip * kTapRowImages : 64;
  // Where a step's boxes of dy, and what it multiplies them with, lie.
  static constexpr int kDyBox = kPixels * 128;
  static constexpr int kDyBytes = kN / 64 * kDyBox;
  static constexpr int kXBox = (kTapRow ? kTapRowImages : kPixels) * kLine;
  static constexpr int kXBytes =
      kTapRow ? kPixels * kLine + 2 * kXBox : kBlocks * kXBox;
  static constexpr int kStageBytes = kDyBytes + kXBytes;
  static_assert(kDyBytes % 1024 == 0 && kStageBytes % 1024 == 0 &&
                kStageBytes == kTile.step_bytes());

  // Sums are handed on in parts: those that a warp has of 16 filter rows.
  static constexpr int kUnits = kColumns / 16, kWarps = kConsumed / 32;
  static constexpr int kParts = kUnits * kWarps;
  static constexpr int kPartBytes = 32 * 32;
  static_assert(kStages * kStageBytes >= kParts * 512);

  // What AddWgradPartials asks, of boxes of 64 channels.
  using Layout = WgradShortConfig;
  static constexpr int kWidth = kOneGroup;
  static constexpr bool kTransposed = true;
  static constexpr int kQuads = kColumns / 8;
  __device__ static bool Has(const WgradTiles&, int, int, int) { return true; }
  __device__ static BlockOrigin Origin(const WgradTiles& tiles, int tile,
                                       int block, int thread) {
    static_assert(!kTapRow);
    const TilePlace at(tiles, tile);
    const int group = thread / kWarpgroup;
    const int of_tile = group % kGroupsM * (kColumns / 64) + block;
    const int k = at.n * kN + group / kGroupsM * 64;
    uint32_t rest = at.m * kBlocks + of_tile;
    const int c =
        static_cast<int>(TakeDigit(tiles.by_channel_blocks, rest)) * 64;
    return {static_cast<int>(rest), c, k, tiles.K};
  }
};

// In shared memory, behind the stages.
template <typename Config>
struct WgradShortShared {
  RingBarriers<Config::kStages> ring;
  uint64_t sums;

  __device__ static WgradShortShared& Of(uint8_t* memory) {
    static_assert(sizeof(WgradShortShared) <= kShortBarrierBytes);
    return *reinterpret_cast<WgradShortShared*>(
        memory + Config::kStages * Config::kStageBytes);
  }
};

// A block's share of a tile: steps split, split + splits, ... The grid says
// which, so that nothing is divided.
struct WgradShare {
  int split, steps;
  int m, n;  // the tile's place

  __device__ explicit WgradShare(const WgradShortProblem& problem)
      : split(blockIdx.x),
        steps(problem.least_steps + (split < problem.longer)),
        m(problem.m_minor ? blockIdx.y : blockIdx.z),
        n(problem.m_minor ? blockIdx.z : blockIdx.y) {}
  __device__ bool HasRest(const WgradShortProblem& problem) const {
    return split == problem.rest_split;
  }
};

// Copies what a step reads. By a whole warp: what the compiler knows to be the
// same in all lanes stays in uniform registers.
template <typename Config>
struct WgradShortSource {
  const WgradShortProblem& problem;
  const WgradShare& share;
  const bool has_rest;
  int c[Config::kBlocks], offset_h[Config::kBlocks], offset_w[Config::kBlocks];

  // Of a step: its first pixel.
  struct Place {
    int w, h, image;
  };

  __device__ WgradShortSource(const WgradShortProblem& problem,
                              const WgradShare& share)
      : problem(problem), share(share), has_rest(share.HasRest(problem)) {}

  // Where x's boxes are, which no copy of dy waits for.
  __device__ void FindBoxes() {
#pragma unroll
    for (int i = 0; i < Config::kBlocks; ++i) {
      uint32_t tap = share.m * Config::kBlocks + i;
      c[i] = TakeDigit(problem.by_channel_blocks, tap) * Config::kChannels;
      const int s = TakeDigit(problem.by_filter_width, tap);
      offset_h[i] = tap * problem.dilation_h;
      offset_w[i] = s * problem.dilation_w;
    }
  }

  __device__ bool HasRest() const { return has_rest; }
  __device__ static bool Skips(int) { return false; }
  __device__ bool IsRest(int i) const {
    return has_rest && i == share.steps - 1;
  }
  __device__ uint32_t Pixel(int i) const {
    return (share.split + i * problem.splits) * 64u;
  }
  __device__ Place At(int i) const {
    uint32_t image = Pixel(i);
    const int col = static_cast<int>(TakeDigit(problem.by_cols, image));
    const int row = static_cast<int>(TakeDigit(problem.by_rows, image));
    return {problem.base_w + col * problem.step_w,
            problem.base_h + row * problem.step_h, static_cast<int>(image)};
  }

  __device__ void CopyDy(int i, uint32_t dy, uint32_t full) const {
    const bool is_rest = IsRest(i);
    const CUtensorMap& map = is_rest ? problem.dy_rest : problem.dy;
    if (!ElectOne()) return;
    BarrierArriveExpect(full,
                        Config::kStageBytes / (is_rest ? 64 / kRestPixels : 1));
#pragma unroll
    for (int j = 0; j < Config::kN / 64; ++j) {
      LoadTile2(dy + j * kBoxBytes, map, full, share.n * Config::kN + j * 64,
                Pixel(i));
    }
  }
  __device__ void CopyX(int i, const Place& at, uint32_t dy,
                        uint32_t full) const {
    const CUtensorMap& map = IsRest(i) ? problem.x_rest : problem.x;
    if (!ElectOne()) return;
#pragma unroll
    for (int j = 0; j < Config::kBlocks; ++j) {
      const uint32_t to = dy + Config::kDyBytes + j * Config::kXBox;
      LoadIm2col(to, map, full, c[j], at.w, at.h, at.image, offset_w[j],
                 offset_h[j]);
    }
  }
};

// The same where taps share pixels.
template <typename Config>
struct WgradRowSource {
  const WgradRowProblem& problem;
  const WgradShare& share;
  int c, offset_h;

  struct Place {
    int image, q, p, h;
    bool inside;  // else the row is padding, and neither copied nor multiplied
  };

  __device__ WgradRowSource(const WgradRowProblem& problem,
                            const WgradShare& share)
      : problem(problem), share(share) {
    uint32_t tap_row = share.m;
    c = TakeDigit(problem.by_channel_blocks, tap_row) * Config::kChannels;
    offset_h = static_cast<int>(tap_row) + problem.base_h;
  }
  __device__ void FindBoxes() {}

  __device__ static bool HasRest() { return false; }
  __device__ bool Skips(int i) const { return !At(i).inside; }
  __device__ Place At(int i) const {
    uint32_t rest = share.split + i * problem.splits;
    Place at;
    at.p = TakeDigit(problem.by_rows, rest);
    at.q = TakeDigit(problem.by_cols, rest) * kTapRowStrip;
    at.image = rest * kTapRowImages;
    at.h = at.p + offset_h;
    at.inside = unsigned(at.h) < unsigned(problem.height);
    return at;
  }

  // dy's come with x's.
  __device__ void CopyDy(int, uint32_t, uint32_t) const {}
  __device__ void CopyX(int, const Place& at, uint32_t dy,
                        uint32_t full) const {
    if (!ElectOne()) return;
    BarrierArriveExpect(full, at.inside ? Config::kStageBytes : 0);
    if (!at.inside) return;
#pragma unroll
    for (int j = 0; j < Config::kN / 64; ++j) {
      LoadTile4(dy + j * Config::kDyBox, problem.dy, full,
                share.n * Config::kN + j * 64, at.image, at.q, at.p);
    }
    LoadTile4(dy + Config::kDyBytes, problem.x, full, c, at.image,
              at.q + problem.base_w, at.h);
  }
};

template <typename Config>
using WgradSource = std::conditional_t<Config::kTapRow, WgradRowSource<Config>,
                                       WgradShortSource<Config>>;

// A block's barriers for copies stand: all but the warp that copies first wait.
inline constexpr int kReadyBarrier = 15;

// Whether multiplying begins when the first copy is issued, not when those of
// the first round are. In larger clusters and longer shares the warps that then
// wait for the first stage cost more than they gain. All of it is read anyway:
// a constant in another line would take as long as it saves.
template <typename Config>
__device__ __forceinline__ bool BeginsEarly(const WgradShortProblem& problem) {
  return problem.cluster <= 4 && (Config::kTapRow || problem.least_steps < 10);
}

// The first round of stages, by one warp: the copies of a stage that is needed
// first are then ahead of those of others. A kernel starts with this code, for
// whose instructions a block waits as it does for memory, and this with what
// the first copy needs.
template <typename Config>
__device__ __forceinline__ void CopyFirstRound(
    const typename Config::Problem& problem, uint32_t shared,
    WgradShortShared<Config>& block) {
  auto full = [&](int i) { return SharedAddress(&block.ring.full[i]); };
  auto address = [&](int i) { return shared + i * Config::kStageBytes; };
  if (ElectOne()) {
#pragma unroll
    for (int i = 0; i < Config::kStages; ++i) BarrierInit(full(i), 1);
    FenceBarrierInit();
  }
  __syncwarp();
  const WgradShare share(problem);
  WgradSource<Config> source(problem, share);
  source.CopyDy(0, address(0), full(0));
  if (ElectOne()) {
    BarrierInit(SharedAddress(&block.ring.empty[0]), Config::kConsumed / 32);
  }
  __syncwarp();
  const bool early = BeginsEarly<Config>(problem);
  auto let_begin = [&] {
    NamedBarrierArrive(kReadyBarrier, Config::kThreads);
    if (problem.splits > 1) ClusterArrive();
  };
  if (early) let_begin();
  source.FindBoxes();
  const int count = min(share.steps, Config::kStages);
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    source.CopyX(i, source.At(i), address(i), full(i));
    if (i + 1 < count) source.CopyDy(i + 1, address(i + 1), full(i + 1));
    __syncwarp();
  }
  __syncwarp();
  if (!early) let_begin();
}

// The other rounds, by a warp for each stage.
template <typename Config>
__device__ __forceinline__ void CopyLaterRounds(
    const typename Config::Problem& problem, uint32_t shared, int stage,
    WgradShortShared<Config>& block) {
  if (stage == 1 && ElectOne()) {
    PrefetchMap(problem.dy);
    PrefetchMap(problem.x);
  }
  if (stage == 2 && ElectOne()) {
#pragma unroll
    for (int i = 1; i < Config::kStages; ++i) {
      BarrierInit(SharedAddress(&block.ring.empty[i]), Config::kConsumed / 32);
    }
    FenceBarrierInit();
  }
  __syncwarp();
  const uint32_t full = SharedAddress(&block.ring.full[stage]);
  const uint32_t empty = SharedAddress(&block.ring.empty[stage]);
  const uint32_t to = shared + stage * Config::kStageBytes;
  const WgradShare share(problem);
  WgradSource<Config> source(problem, share);
  source.FindBoxes();
  if (stage > 0) {
    NamedBarrier(kReadyBarrier, Config::kThreads);
    if (problem.splits > 1) ClusterArrive();
  }
  if (stage + Config::kStages >= share.steps) return;
  // Costs nothing: no stage is empty before the block's other warps have
  // waited. Under racecheck clusters that leave it out do not end.
  if (problem.splits > 1) ClusterWait();
  uint32_t round = 0;
  for (int i = stage + Config::kStages; i < share.steps; i += Config::kStages) {
    const auto at = source.At(i);
    BarrierWait(empty, round);
    source.CopyDy(i, to, full);
    source.CopyX(i, at, to, full);
    __syncwarp();
    round ^= 1;
  }
}

}  // namespace jax_convbatch::hopper
