// SPDX-License-Identifier: Apache-2.0
// Which convolutions of three spatial axes read x where it lies. Others are
// convolutions of two axes, of copies (depth.py). Host only.
#pragma once

#include <optional>

#include "cuda/sm90/problem/op.h"
#include "cuda/sm90/problem/subproblems.h"

namespace jax_convbatch::hopper {

// Nothing where there is no kernel: for one slice of taps, or what TMA cannot
// express; and where copies cost less.
std::optional<Plan> PlanVolumes(Op op, const ConvGeometry& g, Type type,
                                int multiprocessors);

// The share of padding among the slices that taps of depth read, where there
// are `in` slices; PaddingOfVolume: of fprop. TMA takes many times as long to
// fill a box with zeros as to load it.
double PaddingOfDepth(const SubproblemAxis& depth, int64_t in);
double PaddingOfVolume(const ConvGeometry& g);

}  // namespace jax_convbatch::hopper
