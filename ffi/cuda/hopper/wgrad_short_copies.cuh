// What a block of wgrad_short_kernel.cuh has to do, and how it copies that.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_WGRAD_SHORT_COPIES_CUH_
#define JAX_CONVBATCH_CUDA_HOPPER_WGRAD_SHORT_COPIES_CUH_

#include "cuda/hopper/pipeline.cuh"
#include "cuda/hopper/wgrad_kernel.cuh"
#include "cuda/hopper/wgrad_short_problem.h"
#include "cuda/hopper/wgrad_short_tiling.h"
#include "cuda/hopper/wgrad_tiling.h"

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
  static constexpr int kStages = WgradShortStages(kM, kN);
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
  static_assert(kDyBytes % 1024 == 0 && kStageBytes % 1024 == 0);

  // Sums are handed on in parts: those that a warp has of 16 filter rows.
  static constexpr int kUnits = kColumns / 16, kWarps = kConsumed / 32;
  static constexpr int kParts = kUnits * kWarps;
  static constexpr int kPartBytes = 32 * 32;
  static_assert(kStages * kStageBytes >= kParts * 512);

  static constexpr int SharedBytes(int cluster) {
    const int most = (kParts + cluster - 1) / cluster;
    return kStages * kStageBytes + 1024 +
           (cluster > 1 ? cluster * most * kPartBytes : 0);
  }

  // What AddPieces asks, of boxes of 64 channels.
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

template <typename Config>
struct WgradShortShared {
  RingBarriers<Config::kStages> ring;
  uint64_t sums;
};

// A block's share of a tile: steps split, split + splits, ...
struct WgradShare {
  int tile, split, steps;

  __device__ explicit WgradShare(const WgradTiles& tiles) {
    uint32_t rest = blockIdx.x;
    split = TakeDigit(tiles.by_splits, rest);
    tile = rest;
    steps = tiles.by_splits.Divide(tiles.steps - split + tiles.splits - 1);
  }
  __device__ bool HasRest(const WgradTiles& tiles) const {
    return tiles.has_rest && split == tiles.rest_class;
  }
};

// Copies what a step reads. By a whole warp, which the constructor has work out
// what all steps have in common.
template <typename Config>
struct WgradShortSource {
  const WgradShortProblem& problem;
  const WgradShare& share;
  const bool has_rest;
  int channel;
  int c[Config::kBlocks], offset_h[Config::kBlocks], offset_w[Config::kBlocks];

  __device__ WgradShortSource(const WgradShortProblem& problem,
                              const WgradShare& share)
      : problem(problem), share(share), has_rest(share.HasRest(problem)) {
    const TilePlace place(problem, share.tile);
    channel = place.n * Config::kN;
#pragma unroll
    for (int i = 0; i < Config::kBlocks; ++i) {
      uint32_t tap = place.m * Config::kBlocks + i;
      c[i] = TakeDigit(problem.by_channel_blocks, tap) * Config::kChannels;
      const int r = problem.by_filter_width.Divide(tap);
      offset_h[i] = r * problem.dilation_h;
      offset_w[i] = (tap - r * problem.filter_width) * problem.dilation_w;
    }
  }

  __device__ bool HasRest() const { return has_rest; }
  __device__ static bool Skips(int) { return false; }

  // wait() returns when the stage may be written.
  template <typename Wait>
  __device__ void Copy(int i, uint32_t dy, uint32_t full, Wait wait) const {
    const uint32_t pixel = (share.split + i * problem.splits) * 64u;
    uint32_t image = pixel;
    const int col = static_cast<int>(TakeDigit(problem.by_cols, image));
    const int row = static_cast<int>(TakeDigit(problem.by_rows, image));
    const int w = problem.base_w + col * problem.step_w;
    const int h = problem.base_h + row * problem.step_h;
    const bool is_rest = has_rest && i == share.steps - 1;
    const CUtensorMap& x_map = is_rest ? problem.x_rest : problem.x;
    const CUtensorMap& dy_map = is_rest ? problem.dy_rest : problem.dy;
    wait();
    if (!ElectOne()) return;
    BarrierArriveExpect(full,
                        Config::kStageBytes / (is_rest ? 64 / kRestPixels : 1));
#pragma unroll
    for (int j = 0; j < Config::kN / 64; ++j) {
      LoadTile2(dy + j * kBoxBytes, dy_map, full, channel + j * 64, pixel);
    }
#pragma unroll
    for (int j = 0; j < Config::kBlocks; ++j) {
      const uint32_t to = dy + Config::kDyBytes + j * Config::kXBox;
      LoadIm2col(to, x_map, full, c[j], w, h, image, offset_w[j], offset_h[j]);
    }
  }
};

// The same where taps share pixels.
template <typename Config>
struct WgradRowSource {
  const WgradRowProblem& problem;
  const WgradShare& share;
  int channel, c, offset_h;

  __device__ WgradRowSource(const WgradRowProblem& problem,
                            const WgradShare& share)
      : problem(problem), share(share) {
    const TilePlace place(problem, share.tile);
    channel = place.n * Config::kN;
    uint32_t tap_row = place.m;
    c = TakeDigit(problem.by_channel_blocks, tap_row) * Config::kChannels;
    offset_h = static_cast<int>(tap_row) + problem.base_h;
  }

  struct Place {
    int image, q, p, h;
    bool inside;  // else the row is padding, and neither copied nor multiplied
  };
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
  __device__ static bool HasRest() { return false; }
  __device__ bool Skips(int i) const { return !At(i).inside; }

  template <typename Wait>
  __device__ void Copy(int i, uint32_t dy, uint32_t full, Wait wait) const {
    const Place at = At(i);
    wait();
    if (!ElectOne()) return;
    BarrierArriveExpect(full, at.inside ? Config::kStageBytes : 0);
    if (!at.inside) return;
#pragma unroll
    for (int j = 0; j < Config::kN / 64; ++j) {
      LoadTile4(dy + j * Config::kDyBox, problem.dy, full, channel + j * 64,
                at.image, at.q, at.p);
    }
    LoadTile4(dy + Config::kDyBytes, problem.x, full, c, at.image,
              at.q + problem.base_w, at.h);
  }
};

template <typename Config>
using WgradSource = std::conditional_t<Config::kTapRow, WgradRowSource<Config>,
                                       WgradShortSource<Config>>;

// By all warps that copy, each to its stage; but the first round, the first of
// them alone: the copies of a stage that is needed first are then ahead of
// those of others. Others wait at the block's barrier for the ring's.
template <typename Config>
__device__ __forceinline__ void FillStages(
    const typename Config::Problem& problem, uint32_t shared, int stage,
    WgradShortShared<Config>& block) {
  auto full = [&](int i) { return SharedAddress(&block.ring.full[i]); };
  const uint32_t empty = SharedAddress(&block.ring.empty[stage]);
  auto address = [&](int i) { return shared + i * Config::kStageBytes; };
  if (stage == 0 && ElectOne()) {
#pragma unroll
    for (int i = 0; i < Config::kStages; ++i) BarrierInit(full(i), 1);
    FenceBarrierInit();
  }
  if (stage > 0 && ElectOne()) {
    BarrierInit(empty, Config::kConsumed / 32);
    if (stage == 1) {
      BarrierInit(SharedAddress(&block.ring.empty[0]), Config::kConsumed / 32);
      PrefetchMap(problem.x);
    }
    FenceBarrierInit();
  }
  __syncwarp();
  const WgradShare share(problem);
  const WgradSource<Config> source(problem, share);
  if (stage == 0) {
    const int count = min(share.steps, Config::kStages);
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      source.Copy(i, address(i), full(i), [] {});
      __syncwarp();
    }
  }
  __syncthreads();
  uint32_t round = 0;
  for (int i = stage + Config::kStages; i < share.steps; i += Config::kStages) {
    source.Copy(i, address(stage), full(stage),
                [&] { BarrierWait(empty, round); });
    __syncwarp();
    round ^= 1;
  }
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_WGRAD_SHORT_COPIES_CUH_
