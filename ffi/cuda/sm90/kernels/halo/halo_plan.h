// SPDX-License-Identifier: Apache-2.0
// Which convolutions have the tiles of halo_kernel.cuh. Host only.
#pragma once

#include <array>

#include "cuda/sm90/kernels/halo/halo_shape.h"
#include "cuda/sm90/problem/conv.h"
#include "cuda/sm90/problem/op.h"

namespace jax_convbatch::hopper {

// Of x under a tile.
inline constexpr int kMaxLayerHaloPixels = 240;

// Channels of tiles.
inline constexpr std::array kHaloChannels = {64, 96, 128, 160};

// Whether fprop or dgrad has such tiles, and some use for them: filters of
// several taps. The bits are those of the other tiles, where these form their
// sums whole. fprop of f32 transposes the filter first, as transposed_plan.h
// does.
bool TakesHalo(Op op, const ConvGeometry& g, Type type);

}  // namespace jax_convbatch::hopper
