// SPDX-License-Identifier: Apache-2.0
// When dgrad writes its output as fprop does.
#pragma once

#include <vector>

#include "cuda/sm90/problem/subproblems.h"

namespace jax_convbatch::hopper {

// Whether there is one sub-problem, with taps. So it is without strides, and
// where x has one pixel along each strided axis.
inline bool IsDense(const std::vector<SubproblemAxes>& subs) {
  return subs.size() == 1 && subs[0].taps() > 0;
}

}  // namespace jax_convbatch::hopper
