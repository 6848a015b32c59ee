// SPDX-License-Identifier: Apache-2.0
// How wgrad's product is cut into tiles. Host only.
#pragma once

#include <algorithm>
#include <cstdint>

#include "conv_geometry.h"
#include "cuda/sm90/problem/conv.h"
#include "cuda/sm90/problem/group_width.h"
#include "cuda/sm90/problem/subproblems.h"

namespace jax_convbatch::hopper {

// Of x's pixels, those that some tap reads: a stride may leap over some.
inline double ShareRead(const ConvGeometry& g) {
  return std::min(1.0, 1.0 * g.R / g.stride.h) *
         std::min(1.0, 1.0 * g.S / g.stride.w);
}

// The tile_m of tiles that are a row of three taps by 64 channels. (TF32 only.)
inline constexpr int kTapRowTile = 3 * 64;

// Whether several groups of f32 have wgrad's tiles together: of 8, 16 or 32
// channels.
inline bool IsNarrowTf32(const ConvGeometry& g, Type type) {
  const int64_t c = g.group_C();
  return type == Type::kTf32 && g.groups > 1 && c == g.group_K() &&
         (c == 8 || c == 16 || c == 32);
}

// The same of bf16 and f16, of 2, 4 or 8 channels: of their tiles
// wgrad_store.cuh writes what is in dw.
inline bool IsFew16Bit(const ConvGeometry& g, Type type) {
  return type != Type::kTf32 && IsFewChannelGroups(g);
}

// Groups of bf16 and f16 that only wgrad has these tiles for: few channels, and
// 16 to 24 of which fprop and dgrad would fill boxes of 64 up with zeros.
inline bool IsWgradAlone(const ConvGeometry& g, Type type) {
  const int64_t c = g.group_C(), k = g.group_K();
  return IsFew16Bit(g, type) ||
         (type != Type::kTf32 && g.groups > 1 && c % 8 == 0 && k % 8 == 0 &&
          std::min(c, k) >= 16 && std::max(c, k) < 32 &&
          GroupWidth(g) == kAnyGroups);
}

// What has tiles of its own: groups, or sets of narrow ones; and how many
// channels of x and of dy it takes, but for the last set.
struct WgradUnits {
  int64_t count, inputs, outputs;

  WgradUnits(const ConvGeometry& g, Type type)
      : count(GroupUnits(g)),
        inputs(UnitChannels(g, g.C)),
        outputs(UnitChannels(g, g.K)) {
    if (!IsNarrowTf32(g, type) && !IsFew16Bit(g, type)) return;
    count = (g.C + kBoxGroups - 1) / kBoxGroups;
    inputs = outputs = kBoxGroups;
  }
};

// Filter rows come in blocks of channels of one tap, 128 bytes each, or where
// taps share their pixels in blocks of 64 channels of one row of taps; a tile
// has some of them, some output channels, and one step for each so many pixels.
//
// Several groups have such tiles each; narrow ones as many together as have 64
// channels.
struct WgradTiling {
  int64_t block;  // pixels of a step, channels of 128 bytes
  int64_t units;  // groups, or sets of narrow ones
  int64_t channel_blocks, filter_blocks, m_tiles, n_tiles, steps;  // of one

  WgradTiling(const ConvGeometry& g, Type type, int tile_m, int tile_n)
      : block(128 / ElementBytes(type)),
        units(WgradUnits(g, type).count),
        n_tiles((WgradUnits(g, type).outputs + tile_n - 1) / tile_n) {
    const int64_t inputs = WgradUnits(g, type).inputs;
    int64_t cols = g.Q;
    if (type == Type::kTf32 && tile_m == kTapRowTile) {
      cols = WithReach(FpropSubproblem(g)).w.count;
      channel_blocks = (inputs + 63) / 64;
      m_tiles = filter_blocks = g.T * g.R * channel_blocks;
    } else {
      channel_blocks = (inputs + block - 1) / block;
      filter_blocks = g.taps() * channel_blocks;
      m_tiles = (filter_blocks * block + tile_m - 1) / tile_m;
    }
    steps = (g.N * g.O * g.P * cols + block - 1) / block;
  }

  int64_t tiles() const { return units * m_tiles * n_tiles; }
};

// Rows times columns of tiles of which up to eight blocks of a cluster add
// their sums, in shared memory that is kept for them.
inline constexpr int kSmallTile = 64 * 128;

// Nine taps of 64 channels by 64 output channels in a tile: x is read once for
// all taps (wgrad_halo_kernel.cuh).
inline constexpr int kHaloM = 9 * 64, kHaloN = 64;

// Whether a kernel has the code for whole tiles after shares of others: it
// costs small tiles 1.7 us.
constexpr bool MayDoWhole(int tile_m, int tile_n) {
  return tile_m * tile_n > kSmallTile && tile_m != kHaloM;
}

// Which tiles blocks share: all, or where there are more tiles than blocks
// those that are left when each block has done as many whole ones as the
// others.
struct Sharing {
  int64_t whole;  // tiles that one block does
  // Blocks of each of the other tiles; 0 where shares do not end with tiles.
  int64_t splits;

  static Sharing Of(int64_t tiles, int64_t blocks, int64_t steps,
                    bool may_do_whole) {
    if (blocks % tiles == 0) return {0, blocks / tiles};
    const int64_t left = tiles % blocks;
    if (tiles < blocks || left == 0 || !may_do_whole) return {0, 0};
    // Blocks that do not share what is left have nothing to do meanwhile.
    constexpr double kMostIdle = 0.04;
    const int64_t splits = blocks / left;
    const double idle = 1.0 / static_cast<double>(splits) -
                        static_cast<double>(left) / static_cast<double>(blocks);
    return splits > 1 && splits <= steps &&
                   idle * static_cast<double>(blocks) <=
                       kMostIdle * static_cast<double>(tiles)
               ? Sharing{tiles - left, splits}
               : Sharing{0, 0};
  }
};

// A multiplication takes 16 pixels: those of 16 images at one place, of 8 at
// two, ..., or of one image at 16. A step is a row of a strip. Of three axes
// (16 bits alone), slices of dy take the place of images, and each tap of depth
// has tiles of its own.
struct HaloTiling {
  static constexpr int kMaxStages = 8;
  static constexpr int kSharedBytes = 225 << 10;
  static constexpr double kMaxImageBytes = int64_t{1} << 40;

  int64_t channel_blocks, n_tiles;  // of all groups; of one
  int images, strip, reach;         // reach: columns that taps add to a strip
  int64_t image_groups, strips, steps;
  int64_t depth_taps;

  static bool Covers(const ConvGeometry& g, Type type) {
    // f32 has kernels for 16 images and whole boxes of channels.
    const bool boxes = g.C % 32 == 0 && g.K % 32 == 0 &&
                       (IsNarrowTf32(g, type) || GroupWidth(g) != kAnyGroups);
    const double pixels = 1.0 * g.O * g.P * g.Q;
    return (type != Type::kTf32 || (g.N > 8 && boxes && !Is3d(g))) &&
           g.R == 3 && g.S == 3 && g.stride.all(1) &&
           (g.filter_dilation.all(1) ||
            (type != Type::kTf32 && !Is3d(g) && CoversDilation(g))) &&
           // What TMA can stride over.
           pixels * static_cast<double>(g.K) * ElementBytes(type) <
               kMaxImageBytes &&
           1.0 * g.D * g.H * g.W * static_cast<double>(g.C) *
                   ElementBytes(type) <
               kMaxImageBytes;
  }

  HaloTiling(const ConvGeometry& g, Type type)
      : channel_blocks(WgradUnits(g, type).count *
                       ((WgradUnits(g, type).inputs + 63) / 64)),
        n_tiles((WgradUnits(g, type).outputs + 63) / 64),
        images(Images(g, type)),
        strip(Strip(g.Q, images)),
        reach(static_cast<int>(2 * g.filter_dilation.w)),
        image_groups(Is3d(g) ? g.N * slice_groups(g)
                             : (g.N + images - 1) / images),
        strips((g.Q + strip - 1) / strip),
        steps(image_groups * strips * g.P),
        depth_taps(g.T) {}

  int64_t tiles() const { return depth_taps * channel_blocks * n_tiles; }
  // Of three axes: of an image.
  int64_t slice_groups(const ConvGeometry& g) const {
    return (g.O + images - 1) / images;
  }
  int multiplications() const { return strip * images / 16; }
  int pixel_bytes() const { return images * 128; }
  // Of x, so that boxes begin at multiples of the swizzle's 1024 bytes.
  int x_columns() const {
    const int eight = std::max(1, 8 / images);
    return (strip + reach + eight - 1) / eight * eight;
  }
  int stage_bytes() const { return (strip + x_columns()) * pixel_bytes(); }
  // Of the ring, beside so many bytes for what is stored.
  int stages(int stored_bytes = 0) const {
    return std::min(kMaxStages, (kSharedBytes - stored_bytes) / stage_bytes());
  }

 private:
  // Where there is room for enough stages, and rows of x are loaded for enough
  // rows of dy.
  static bool CoversDilation(const ConvGeometry& g) {
    return g.filter_dilation.w <= 4 && g.filter_dilation.h * 4 <= g.P;
  }

  static int64_t Covered(int64_t count, int64_t of) {
    return (count + of - 1) / of * of;
  }

  // Those that fill the least with zeros. Of equals 8, whose strips are twice
  // as wide as those of 16, so that fewer columns of x are read twice; those of
  // 4, 2 and 1 are wider still, but were not timed where 8 do as well.
  static int Images(const ConvGeometry& g, Type type) {
    if (type == Type::kTf32) return 16;
    const int64_t count = Is3d(g) ? g.O : g.N;
    auto pixels = [&](int images) {
      return Covered(count, images) * Covered(g.Q, Strip(g.Q, images));
    };
    int best = 8;
    for (const int images : {16, 4, 2, 1}) {
      if (pixels(images) < pixels(best)) best = images;
    }
    return best;
  }

  // Seven or eight multiplications wide.
  static int Strip(int64_t cols, int images) {
    auto covered = [&](int64_t strip) { return Covered(cols, strip); };
    const int seven = 7 * 16 / images, eight = 8 * 16 / images;
    return covered(seven) < covered(eight) ? seven : eight;
  }
};

// Tiles of 576x64 that are fewer than blocks, but more than half as many: each
// has a block of its own that does its first steps; the blocks that are left do
// the others (wgrad_halo_scheduler.cuh).
struct HaloHelpers {
  int64_t own_steps, count;

  static HaloHelpers Of(const ConvGeometry& g, Type type, const Plan& plan) {
    const HaloTiling tiling(g, type);
    const int64_t tiles = tiling.tiles(), count = plan.blocks - tiles;
    if (g.groups > 1 || type == Type::kTf32 || plan.tile_m != kHaloM ||
        plan.tile_n != kHaloN || plan.cluster > 1 || count <= 0 ||
        count >= tiles) {
      return {0, 0};
    }
    // What it takes, in steps, to begin and to leave a partial.
    constexpr double kPartial = 2;
    const double partials =
        static_cast<double>(tiles) / static_cast<double>(count);
    const double own =
        (static_cast<double>(tiling.steps) * partials + kPartial * partials) /
        (1 + partials);
    const auto own_steps = static_cast<int64_t>(own + 0.5);
    return own_steps >= tiling.steps ? HaloHelpers{0, 0}
                                     : HaloHelpers{own_steps, count};
  }
};

// Tiles of 576x64 that are more than blocks, each of which does as many whole
// ones, one after another, and stores one while it multiplies the next. The few
// that are left over, the last output channels of the last input channels, are
// done before, tap by tap: as tiles of 64x64 (wgrad_short_kernel.cuh).
struct HaloRounds {
  static constexpr int kStoredBytes = 3 * (32 * 128);  // of shared memory
  int64_t whole, left;  // tiles; 0 where it is otherwise

  // Blocks of a tile of 64x64: all run at once.
  int splits() const { return left <= 4 ? 3 : left <= 7 ? 2 : 1; }

  static HaloRounds Of(const ConvGeometry& g, Type type, const Plan& plan) {
    constexpr int64_t kMostLeft = 14;
    if (g.groups > 1 || type == Type::kTf32 || Is3d(g) ||
        plan.tile_m != kHaloM || plan.tile_n != kHaloN || plan.cluster > 1) {
      return {0, 0};
    }
    const HaloTiling tiling(g, type);
    const int64_t tiles = tiling.tiles(), left = tiles % plan.blocks;
    const bool few = left <= std::min(kMostLeft, tiling.n_tiles) &&
                     g.C % 64 == 0 && g.K % 64 == 0 && g.N * g.P * g.Q > 128;
    return tiles > plan.blocks && (left == 0 || few)
               ? HaloRounds{tiles - left, left}
               : HaloRounds{0, 0};
  }
};

}  // namespace jax_convbatch::hopper
