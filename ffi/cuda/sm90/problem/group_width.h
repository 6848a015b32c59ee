// SPDX-License-Identifier: Apache-2.0
// How the channels of several groups lie in the tiles of a kernel.
#pragma once

#include <algorithm>
#include <cstdint>

#include "conv_geometry.h"

namespace jax_convbatch::hopper {

// A configuration's kWidth: one group; several, each of a multiple of 64
// channels, whose tiles have channels of one group; the same of any number,
// with maps that know where a group ends; or else the channels of a narrow
// group, a fraction of 64. Tiles and stages then have 64 channels of several
// groups, and each of those is multiplied by itself.
inline constexpr int kOneGroup = 0, kBoxGroups = 64, kAnyGroups = -1;

template <int kWidth>
inline constexpr bool kIsNarrow = 0 < kWidth && kWidth < kBoxGroups;

inline bool IsNarrow(int width) { return 0 < width && width < kBoxGroups; }

// Groups of 2, 4 or 8 channels, which lie in the tiles of those of kFewWidth:
// the zeros of their neighbours are multiplied.
inline constexpr int kFewWidth = 16;

inline bool IsFewChannelGroups(const ConvGeometry& g) {
  const int64_t c = g.group_C();
  return g.groups > 1 && c == g.group_K() && (c == 2 || c == 4 || c == 8);
}

// That of bf16 and f16.
inline int GroupWidth(const ConvGeometry& g) {
  const int64_t c = g.group_C(), k = g.group_K();
  if (g.groups == 1) return kOneGroup;
  if (IsFewChannelGroups(g)) return kFewWidth;  // f32 has tiles of its own
  if (c % kBoxGroups == 0 && k % kBoxGroups == 0) return kBoxGroups;
  if (c == k && (c == 16 || c == 32)) return static_cast<int>(c);
  return kAnyGroups;
}

// How many groups the maps know of.
inline int64_t MapGroups(const ConvGeometry& g) {
  return GroupWidth(g) == kAnyGroups ? g.groups : 1;
}

// Groups, or sets of narrow ones, of which the last may be smaller.
inline int64_t GroupUnits(const ConvGeometry& g) {
  return IsNarrow(GroupWidth(g)) ? (g.C + kBoxGroups - 1) / kBoxGroups
                                 : g.groups;
}

// Of a tensor's channels, those of a group, or of a set of narrow ones.
inline int64_t UnitChannels(const ConvGeometry& g, int64_t channels) {
  return IsNarrow(GroupWidth(g)) ? kBoxGroups : channels / g.groups;
}

}  // namespace jax_convbatch::hopper
