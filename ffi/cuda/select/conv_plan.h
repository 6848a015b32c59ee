// SPDX-License-Identifier: Apache-2.0
// How fprop and dgrad of 16-bit types and one group run. Host only.
#pragma once

#include "cuda/sm90/problem/conv.h"
#include "cuda/sm90/problem/op.h"

namespace jax_convbatch::hopper {

// Of two axes or three, and sub-problems that are walkable.
Plan HalfPlan(Op op, const ConvGeometry& g, Type type, int multiprocessors);

}  // namespace jax_convbatch::hopper
