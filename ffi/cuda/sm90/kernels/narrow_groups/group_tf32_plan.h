// SPDX-License-Identifier: Apache-2.0
// Narrow groups in f32: which the kernel takes, and its tiles. Host only.
#pragma once

#include <optional>
#include <vector>

#include "cuda/sm90/kernels/narrow_groups/group_tf32_tiling.h"
#include "cuda/sm90/problem/subproblems.h"

namespace jax_convbatch::hopper {

// Whether its groups are narrow enough: 8 to 32 channels, multiples of 4, on
// either side.
bool IsGroupTf32(const ConvGeometry& g, Type type);

// The groups of one line of channels: as many whole ones as fill it where they
// divide it, otherwise one.
int GroupsOfLine(const ConvGeometry& g);

// Lines of a pixel.
int64_t GroupLines(const ConvGeometry& g);

// Columns of a product: a group's output channels, rounded up to eights.
int GroupColumns(int64_t outputs);

// The tiles of products of so many blocks of 64 pixels, or nothing where the
// kernel cannot run them.
std::optional<GroupTiling> TileGroupTf32(const ConvGeometry& g, bool dgrad,
                                         int blocks);

// The plan of fprop or dgrad, whose bits no tile changes; nothing where there
// is none. tile_m: pixels of a product, tile_n: kGroupLine.
std::optional<Plan> PlanGroupTf32(const ConvGeometry& g, bool dgrad,
                                  int multiprocessors);

// One axis of all sub-problems as a launch has them: taps read at `step` times
// an output's place, plus an offset.
struct GroupReach {
  int step;       // of the input
  int low, high;  // offsets within a class, of all taps
};
GroupReach ReachOf(const std::vector<SubproblemAxes>& subs,
                   SubproblemAxis SubproblemAxes::* axis);

}  // namespace jax_convbatch::hopper
