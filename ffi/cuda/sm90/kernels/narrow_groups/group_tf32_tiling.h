// SPDX-License-Identifier: Apache-2.0
// Tiles of the kernel of narrow groups in f32, as the host chooses them.
#pragma once

namespace jax_convbatch::hopper {

// A pixel's channels in shared memory: 128 bytes, of one group or of several
// whole ones.
inline constexpr int kGroupLine = 32;
// Taps that a launch may have, and residue classes of the strides.
inline constexpr int kMostGroupTaps = 25, kMostGroupClasses = 4;

// Taps of a filter row that may be one product's columns.
inline constexpr int kSharedTaps = 3;

// A tile is `rows` x `cols` outputs of each residue class of one image. What it
// reads is one box of box_rows x `width` pixels of each class of the input.
struct GroupTiling {
  int blocks;  // 64 pixels each: those of a product, from row to row of the box
  int rows, cols, width, box_rows;
  int tiles;        // down an image
  int class_bytes;  // a box and what products read behind it
  int stages;
  bool shares;   // taps, kSharedTaps each
  int resident;  // blocks of an SM
};

// Sums of a thread up to which two blocks may share an SM's registers.
inline constexpr int kFewGroupSums = 48;

}  // namespace jax_convbatch::hopper
