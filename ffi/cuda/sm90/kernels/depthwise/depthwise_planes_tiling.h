// SPDX-License-Identifier: Apache-2.0
// The tiles of depthwise_planes.cuh.
#pragma once

#include <cstdint>

#include "cuda/sm80/direct/walk.h"

namespace jax_convbatch::direct {

// A block has 32 channels, a warp two of them. In a step it multiplies one row
// of the image: sixteen runs of eight neighbouring outputs, the sixteen rows of
// a tensor core's product.
struct Planes {
  static constexpr int kChannels = 32, kWarps = 16, kThreads = kWarps * 32;
  static constexpr int kRuns = 16, kRun = 8;
  static constexpr int kStages = 5;  // rows of the image under way
  // Bytes of a run of one channel, and of a thread's copy.
  static constexpr int kRunBytes = 16;
  static constexpr int kRawBytes = kThreads * 16;  // of a copy of each thread
};

// The planes of a row of which each thread copies so many runs.
template <int kCopies>
struct PlanesOfRow {
  // From one channel to the next: an odd number of runs, the last of them
  // zeros.
  static constexpr int kPitch =
      (kCopies * Planes::kRuns + 1) * Planes::kRunBytes;
  static constexpr int kBytes = Planes::kChannels * kPitch;
};

constexpr int PlanesBytes(int copies) {
  return copies == 1 ? PlanesOfRow<1>::kBytes : PlanesOfRow<2>::kBytes;
}
constexpr int PlanesSharedBytes(int taps, int copies) {
  return Planes::kStages * copies * Planes::kRawBytes +
         2 * PlanesBytes(copies) + 2 * PlanesBytes(1) +
         taps * taps * Planes::kChannels * 2;
}
constexpr int PlanesWgradSharedBytes(int copies) {
  return Planes::kStages * (copies + 1) * Planes::kRawBytes +
         2 * PlanesBytes(copies) + 2 * PlanesBytes(1);
}

// A segment is as many columns of an image, of all its rows; a group is as many
// segments as have at most sixteen runs in a row. Each worker has as many rows
// of the groups, one after the other.
struct PlanesTiling {
  int runs, input_runs;  // of a row of a segment: of outputs, and of inputs
  int segments;          // of a group
  int across;            // segments of an image
  int groups;
  int copies;  // of 16 bytes that a thread makes of a row of a group
};

// Of the outputs of a walk.
PlanesTiling TilePlanes(const Walks& walks, int64_t batch);

}  // namespace jax_convbatch::direct
