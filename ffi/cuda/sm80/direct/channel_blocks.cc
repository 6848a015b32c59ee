// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/direct/channel_blocks.h"

#include <algorithm>

namespace jax_convbatch::direct {
namespace {

// Input channels of a tile beyond which it would hold few pixels.
constexpr int kMostInputs = 128;

// Whether groups and blocks of 8 channels begin together.
bool FitsBlocks(int64_t group) {
  return group % 8 == 0 || group == 4 || group == 2 || group == 1;
}

}  // namespace

bool MakeChannelBlocks(int64_t in, int64_t out, int64_t groups,
                       ChannelBlocks* b) {
  const int64_t in_group = in / groups, out_group = out / groups;
  if (in % 8 != 0 || out % 8 != 0 || in >= 1 << 24 || out >= 1 << 24 ||
      !FitsBlocks(in_group) || !FitsBlocks(out_group)) {
    return false;
  }
  b->in = static_cast<int>(in);
  b->out = static_cast<int>(out);
  b->in_group = static_cast<int>(in_group);
  b->out_group = static_cast<int>(out_group);
  const int inputs =
      static_cast<int>(out_group < 8 ? 8 / out_group * in_group : in_group);
  b->depth = std::max(inputs, 8);
  if (b->depth > kMostInputs) return false;
  b->shared = b->depth > 8;
  const int of_group = static_cast<int>(std::max<int64_t>(out_group / 8, 1));
  if (!b->shared) {
    b->at_once = b->blocks = 4;
  } else if (b->depth % 16 == 0) {
    b->at_once = of_group % 4 == 0 ? 4 : of_group % 2 == 0 ? 2 : 1;
  } else {
    b->at_once = of_group % 3 == 0 ? 3 : 1;
  }
  if (b->shared) {
    // Whole groups, but no more of a large one than is computed at once.
    b->blocks = of_group >= 8 ? b->at_once : of_group;
    while (b->blocks < 4 && b->blocks / of_group * 2 * b->depth <= 64) {
      b->blocks *= 2;
    }
  }
  b->tile_in = 0;
  for (int tile = 0; tile < b->tiles(); ++tile) {
    const int first = tile * b->blocks;
    const int last = std::min(first + b->blocks, b->out / 8) - 1;
    b->tile_in =
        std::max(b->tile_in, b->InOf(last) + b->depth - b->InOf(first));
  }
  return b->tile_in <= kMostInputs;
}

bool MakeWgradRoles(int64_t in, int64_t out, int64_t groups, int64_t taps,
                    int warps, WgradRoles* roles) {
  const int64_t in_group = in / groups, out_group = out / groups;
  if (in % 8 != 0 || out % 8 != 0 || in >= 1 << 24 || out >= 1 << 24 ||
      !FitsBlocks(in_group) || !FitsBlocks(out_group) ||
      std::max(in_group, out_group) > kMostInputs) {
    return false;
  }
  WgradRoles& r = *roles;
  r.in_group = static_cast<int>(in_group);
  r.out_group = static_cast<int>(out_group);
  // So many that tiles begin at 16 bytes, then as many as 32 channels hold.
  r.tile_groups = 1;
  while (r.tile_groups * in_group % 8 != 0 ||
         r.tile_groups * out_group % 8 != 0 ||
         r.tile_groups * 2 * std::max(in_group, out_group) <= 32) {
    r.tile_groups *= 2;
  }
  if (r.tile_in() > kMostInputs || r.tile_out() > kMostInputs) return false;
  r.pairs = 0;
  for (int i = 0; i < r.tile_in() / 16; ++i) {
    for (int j = 0; j < r.tile_out() / 16; ++j) {
      // Whether the groups of the sixteens meet.
      const int first = std::max(i * 16 / r.in_group, j * 16 / r.out_group);
      const int last =
          std::min((i * 16 + 15) / r.in_group, (j * 16 + 15) / r.out_group);
      if (first > last) continue;
      if (r.pairs == kMostPairs) return false;
      r.in[r.pairs] = static_cast<uint8_t>(i);
      r.out[r.pairs] = static_cast<uint8_t>(j);
      ++r.pairs;
    }
  }
  const int64_t chunks = (taps + kRoleTaps - 1) / kRoleTaps;
  if (chunks > 1 << 10) return false;
  r.chunks = static_cast<int>(chunks);
  r.count = r.pairs * r.chunks;
  r.blocks = (r.count + warps - 1) / warps;
  return true;
}

}  // namespace jax_convbatch::direct
