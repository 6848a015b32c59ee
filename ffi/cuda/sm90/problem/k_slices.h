// SPDX-License-Identifier: Apache-2.0
// Long sums of few outputs an image (SumsInKSlices and Tf32KSlices in
// subproblems.h) are formed in K slices, each from zero, which are added in
// order.
#pragma once

namespace jax_convbatch::hopper {

inline constexpr int kSumKSlices = 4;   // of 16 bits
inline constexpr int kMostKSlices = 8;  // of f32

// What a K slice's first stage is, as StageWalk counts, and how many it has.
struct ConvKSlice {
  int r, s, t, block, count;
};
struct ConvKSlices {
  ConvKSlice k_slice[kMostKSlices];
};

// Of f32, the tiles whose K slices a warpgroup adds in registers, where more
// pixels have no place: they need no workspace, and large batches have enough
// of them. Those of other heights leave partial sums, one tile a K slice.
inline constexpr int kAddedKSlicePixels = 160;

}  // namespace jax_convbatch::hopper
