// SPDX-License-Identifier: Apache-2.0
// How the kernels of skinny_conv.cuh, skinny_wgrad.cuh and skinny_ring.cuh
// share their pixels.
#pragma once

namespace jax_convbatch::hopper {

inline constexpr int kSkinnyWarps = 8, kSkinnyThreads = 32 * kSkinnyWarps;

// Groups of 64 bytes of an input pixel that fprop and dgrad have kernels for;
// of nine groups, as 144 channels of f32 have, boxes were no slower.
inline constexpr int kNarrowGroups[] = {1, 2, 3, 5, 6};

// Pixels that a warp has at a time, while it loads as many, and blocks of an
// SM: as registers allow.
constexpr int NarrowTile(int groups) { return groups <= 2 ? 32 : 16; }
constexpr int SkinnyResident(int groups) { return groups <= 3 ? 2 : 1; }

// Of wgrad of a small dw, channels of the wider and of the narrower operand
// that there are kernels for: those of up to kSkinnySmallFilter sums.
inline constexpr int kSkinnyA[] = {16, 32, 64, 96};
inline constexpr int kSkinnyB[] = {16, 32};
inline constexpr int kSkinnySmallFilter = 1536;

// Pixels that a warp loads at once, in steps of 32 bytes a channel, and blocks
// of an SM.
constexpr int SkinnyWgradSteps(int a, int b) {
  return a + b <= 48 ? 4 : a + b <= 64 ? 2 : 1;
}
constexpr int SkinnyWgradPixels(int a, int b, int element_bytes) {
  return SkinnyWgradSteps(a, b) * 32 / element_bytes;
}
inline constexpr int kSkinnyWgradResident = 2;

// Of a larger dw: the most stages of a ring and the runs of a stage. As many
// warps multiply at most, 16 channels of the wider operand each, beside one
// that copies.
inline constexpr int kSkinnyStages = 8, kSkinnyRuns = 8;
inline constexpr int kSkinnyMostBlocks = 15, kSkinnyMostColumns = 48;
inline constexpr int kSkinnyRingThreads = 32 * (kSkinnyMostBlocks + 1);

}  // namespace jax_convbatch::hopper
