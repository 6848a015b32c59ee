// SPDX-License-Identifier: Apache-2.0
// Convolutions of many groups of a few channels, of bf16 and f16.
#pragma once

#include "cuda/sm80/direct/channel_blocks.h"
#include "cuda/sm80/direct/direct.h"
#include "cuda/sm80/direct/walk.h"

namespace jax_convbatch::direct {

inline constexpr int kGroupedThreads = 256, kGroupedStages = 3;
// That an SM holds. Where a warp's blocks have inputs of their own, registers
// for the operands of three taps count more than warps.
constexpr int GroupedBlocks(bool shared) { return shared ? 3 : 2; }
inline constexpr int kGroupedWgradStages = 2;
// Outputs that a warp multiplies at a time.
inline constexpr int kWarpOutputs = 32, kWgradWarpOutputs = 16;

// Bytes of a staged pixel: an odd number of 16-byte chunks, so that neighbours
// begin in different banks.
inline int GroupedPixelBytes(int channels) {
  return (channels * 2 + 15) / 16 / 2 * 32 + 16;
}

// Bytes of the filter in shared memory.
inline int GroupedFilterBytes(const ChannelBlocks& channels, int taps) {
  return taps * channels.blocks * channels.depth / 8 * 128;
}

std::optional<Plan> PlanGrouped(Op op, const ConvGeometry& g,
                                int multiprocessors);
cudaError_t RunGroupedWgrad(const Call& call, Stage stage, cudaStream_t stream);
cudaError_t RunGrouped(Op op, const Call& call, Stage stage,
                       cudaStream_t stream);

}  // namespace jax_convbatch::direct
