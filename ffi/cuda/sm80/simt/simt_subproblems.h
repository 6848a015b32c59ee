// SPDX-License-Identifier: Apache-2.0
// What plan and launches ask about the sums of fprop and dgrad. Host only.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/sm80/simt/simt.h"
#include "cuda/sm90/problem/op.h"
#include "cuda/sm90/problem/subproblems.h"

namespace jax_convbatch::simt {

constexpr hopper::Op Bf16x6Op(Op op) { return static_cast<hopper::Op>(op); }

// Outputs that use the same taps, of most taps first.
std::vector<hopper::SubproblemAxes> SubproblemsOf(Op op, const ConvGeometry& g);

// Of kDepth of the reduction each.
int Steps(const hopper::SubproblemAxes& sub, int64_t in_channels);

// How many K slices a sum is formed in: enough to fill the GPU with a batch of
// eight. It does not depend on N, so that a sample's bits do not.
int KSlices(Op op, const ConvGeometry& g,
            const std::vector<hopper::SubproblemAxes>& subs);

}  // namespace jax_convbatch::simt
