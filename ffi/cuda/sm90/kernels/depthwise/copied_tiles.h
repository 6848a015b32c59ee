// SPDX-License-Identifier: Apache-2.0
// The tiles of depthwise_copies.cu.
#pragma once

namespace jax_convbatch::direct {

// 14 divides the sizes that images of 224 pixels come to. A thread computes a
// patch of two channels; two patches beside each other are a warp's. One more
// warp issues copies.
struct CopiedTile {
  static constexpr int kSize = 14, kChannels = 32, kTaps = 3;
  static constexpr int kRows = 2, kCols = 7;
  static constexpr int kLanes = kChannels / 2;
  static constexpr int kPatches = kSize / kRows * (kSize / kCols);
  static constexpr int kWarps = kPatches * kLanes / 32;
  static constexpr int kThreads = (kWarps + 1) * 32;
  static constexpr int kBlocks = 3;  // of an SM
  static constexpr int kStages = 2;
  static constexpr int kPixel = kChannels * 2;  // bytes
  static constexpr int kBox = kSize + kTaps - 1;
  static constexpr int kStageBytes = kBox * kBox * kPixel;
  static constexpr int kStoreBytes = kRows * kSize * kPixel;  // of a warp
  static constexpr int kFilterBytes = kTaps * kTaps * kChannels * 4;
  static constexpr int kSharedBytes =
      kStages * kStageBytes + kWarps * kStoreBytes + kFilterBytes;
};

}  // namespace jax_convbatch::direct
