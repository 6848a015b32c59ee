// SPDX-License-Identifier: Apache-2.0
// The variants of the depthwise kernels.
#pragma once

#include "cuda/sm80/direct/walk.h"

namespace jax_convbatch::direct {

inline constexpr int kThreads = 256;

// A square filter of `taps` x `taps` undilated taps, all of which every output
// uses, and the step of the input from one output to the next; every pixel is
// aligned to 16 bytes. Or the dgrad of stride 2 of such a filter, of which the
// residue class `longer` has the taps 0, 2, ... and the other class the rest;
// along both axes. Zeros: any.
struct Kind {
  int taps, step, longer = -1;

  constexpr bool strided() const { return longer >= 0; }
};

inline constexpr Kind kKinds[] = {{3, 1}, {3, 2}, {5, 1},
                                  {5, 2}, {7, 1}, {7, 2}};
inline constexpr Kind kStridedKinds[] = {
    {3, 1, 0}, {3, 1, 1}, {5, 1, 0}, {5, 1, 1}};

inline Kind KindOf(const Walks& walks, int64_t pixel_bytes) {
  for (const Kind& kind : kKinds) {
    auto fits = [&](const AxisWalk& axis) {
      return axis.classes == 1 && axis.in_step == kind.step &&
             axis.offset_step == 1 && axis.filter_size == kind.taps;
    };
    if (fits(walks.h) && fits(walks.w) && pixel_bytes % 16 == 0) return kind;
  }
  for (const Kind& kind : kStridedKinds) {
    auto fits = [&](const AxisWalk& axis) {
      return axis.classes == 2 && axis.in_step == 1 && axis.tap_step == -2 &&
             axis.offset_step == 1 && axis.filter_size == kind.taps &&
             axis.taps[kind.longer].first == kind.taps - 1;
    };
    if (fits(walks.h) && fits(walks.w) && pixel_bytes % 16 == 0) return kind;
  }
  return {0, 0};
}

// Whether registers hold the sums of a wide patch, of a type of so many bytes.
constexpr bool IsWide(Kind kind, int bytes) {
  return kind.step == 1 && bytes == 2 && kind.taps < 7 && !kind.strided();
}

// The outputs that a thread of fprop and dgrad computes at a time, of each
// class where it is strided, and that one of wgrad sees. Seven divides the
// sizes that images of 224 pixels come to.
constexpr int PatchCols(Kind kind, int bytes) {
  return kind.taps == 0 ? 8 : IsWide(kind, bytes) ? 7 : 4;
}
constexpr int WgradCols(Kind kind, int bytes) {
  return kind.taps == 0 ? 8 : kind.step == 1 && bytes == 2 ? 7 : 4;
}
constexpr int PatchRows(Kind kind, int bytes) {
  if (kind.strided()) return kind.taps == 5 && bytes == 4 ? 1 : 2;
  // The pixels of two steps take so much shared memory that a tile has few
  // patches: low ones give more threads something to do.
  if (kind.step == 2) return kind.taps == 3 ? 1 : 2;
  return kind.taps == 0 ? 1 : bytes == 2 ? 4 : 2;
}
constexpr int WgradRows(Kind kind, int bytes) {
  return kind.taps == 0 ? 1 : bytes == 2 && kind.step == 2 ? 4 : 2;
}

// Threads that share a pixel, two channels each. Where a whole image is a few
// patches, more channels give all threads something to do; of a large filter
// fewer leave room for tiles beside it.
inline constexpr int kLanes = 16, kManyLanes = 32, kFewLanes = 8;
inline constexpr int kMostTaps = 400;  // of kLanes
inline int PatchLanes(Kind kind, int bytes, const Walks& walks,
                      int64_t channels) {
  if (walks.h.filter_size * walks.w.filter_size > kMostTaps) return kFewLanes;
  const int rows = PatchRows(kind, bytes), cols = PatchCols(kind, bytes);
  const int64_t patches = int64_t{(walks.h.out_size + rows - 1) / rows} *
                          ((walks.w.out_size + cols - 1) / cols);
  return IsWide(kind, bytes) && channels % (2 * kManyLanes) == 0 &&
                 patches <= kThreads / kManyLanes
             ? kManyLanes
             : kLanes;
}
inline constexpr int kTileChannels = kLanes * 2;  // of wgrad
inline constexpr int kSlots = kThreads / kLanes;

// Tiles in shared memory, one in use and the others on their way, and blocks
// that an SM holds. Where the kind is known, a tile of fprop and dgrad holds no
// more patches than there are threads for.
constexpr int PatchStages(Kind kind, int bytes) {
  if (kind.taps == 0) return 2;
  if (kind.strided()) return kind.taps == 5 && bytes == 4 ? 3 : 2;
  return kind.taps > 3 || IsWide(kind, bytes) ? 2 : 3;
}
constexpr int PatchBlocks(Kind kind, int bytes) {
  return PatchStages(kind, bytes);
}

// Whether neighbouring taps read neighbouring pixels, and outputs, too.
inline bool IsSliding(const Walks& walks) {
  return walks.w.in_step == 1 && walks.w.offset_step == 1;
}
inline constexpr int kWgradStages = 2;
constexpr int WgradBlocks(Kind kind) { return kind.taps > 3 ? 2 : 3; }

// The taps whose sums a thread of wgrad keeps: rows of the filter where the
// kind is known.
constexpr int ChunkRows(Kind kind) { return kind.taps == 7 ? 4 : kind.taps; }
constexpr int ChunkTaps(Kind kind) {
  return kind.taps == 0 ? 8 : ChunkRows(kind) * kind.taps;
}

}  // namespace jax_convbatch::direct
