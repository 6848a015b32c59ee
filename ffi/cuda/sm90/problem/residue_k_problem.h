// SPDX-License-Identifier: Apache-2.0
// What the convolution kernel is told besides, where a tap's channels end in
// less than half a box (residue_k_stages.cuh).
#pragma once

#include <type_traits>

#include "cuda/sm90/problem/conv_problem.h"

namespace jax_convbatch::hopper {

// Of the only sub-problem: boxes of so many channels, 16 or 32, in place of
// those of this block of a tap. Where there are none, 0 and a block that is
// none.
struct ConvResidueK {
  CUtensorMap input, weights;
  int channels = 0, block = -1;
};

struct ResidueKProblem : ConvProblem<1> {
  ConvResidueK residue_k;
};

// Whether a kernel that is given so much has such stages.
template <typename Problem>
inline constexpr bool kHasResidueK = std::is_same_v<Problem, ResidueKProblem>;

}  // namespace jax_convbatch::hopper
