// SPDX-License-Identifier: Apache-2.0
// Grouped convolutions as matrix products of blocks of 8 output channels. A
// block may belong to a group or hold several small ones; then the matrix is
// zero where groups differ.
#pragma once

#include <cstdint>

namespace jax_convbatch::direct {

#ifdef __CUDACC__
#define JCB_HOST_DEVICE __host__ __device__
#else
#define JCB_HOST_DEVICE
#endif

// "In" is what is summed over: x's channels in fprop, dy's in dgrad.
struct ChannelBlocks {
  int in, out;              // channels of the tensors, multiples of 8
  int in_group, out_group;  // of a group: powers of two or multiples of 8
  int depth;    // input channels that a block needs, a multiple of 8
  int blocks;   // of a thread block's tile
  int at_once;  // of a warp
  bool shared;  // whether those that a warp has use the same inputs
  int tile_in;  // input channels that a tile needs

  JCB_HOST_DEVICE int tiles() const { return (out / 8 + blocks - 1) / blocks; }
  // The first input channel of an output block, and of a tile.
  JCB_HOST_DEVICE int InOf(int block) const {
    return block * 8 / out_group * in_group / 8 * 8;
  }
  // Whether some of a block's inputs are of other groups than some outputs.
  JCB_HOST_DEVICE bool mixed() const { return out_group < 8 || in_group < 8; }
};

// False where channels cannot be arranged in this way.
bool MakeChannelBlocks(int64_t in, int64_t out, int64_t groups,
                       ChannelBlocks* blocks);

inline constexpr int kRoleTaps = 9, kMostPairs = 32;

// What the warps of wgrad share out: pairs of 16 channels of x and 16 of dy
// within a tile of whole groups, and chunks of kRoleTaps taps.
struct WgradRoles {
  int in_group, out_group;
  int tile_groups;
  int pairs, chunks, count;  // count: pairs x chunks
  int blocks;                // thread blocks that share them
  uint8_t in[kMostPairs], out[kMostPairs];

  // Channels of a tile, in sixteens.
  JCB_HOST_DEVICE int tile_in() const {
    return (tile_groups * in_group + 15) / 16 * 16;
  }
  JCB_HOST_DEVICE int tile_out() const {
    return (tile_groups * out_group + 15) / 16 * 16;
  }
};

// False where channels cannot be arranged in this way.
bool MakeWgradRoles(int64_t in, int64_t out, int64_t groups, int64_t taps,
                    int warps, WgradRoles* roles);

}  // namespace jax_convbatch::direct
