// SPDX-License-Identifier: Apache-2.0
// Which plans have tiles of residue_n_tiles.cuh. Host only.
#pragma once

#include "cuda/sm90/problem/conv.h"

namespace jax_convbatch::hopper {

// Of fprop and dgrad in bf16 and f16.
inline bool IsResidueNTile(const Plan& plan) { return plan.tile_n % 64 != 0; }

// Channels of tiles that have no epilogue.
inline constexpr int kBareWidth = 192;

// Whether fprop's filter comes in boxes of 64 output channels all the same
// (InWholeBoxes in conv_config.cuh): of more channels it takes longer.
inline bool HasWholeBoxes(const ConvGeometry& g, const Plan& plan) {
  return plan.tile_n == 160 && g.K <= 2 * plan.tile_n;
}

}  // namespace jax_convbatch::hopper
