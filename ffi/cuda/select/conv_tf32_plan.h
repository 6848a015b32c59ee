// SPDX-License-Identifier: Apache-2.0
// Which tiles fprop and dgrad of f32 have: ping-pong or cooperative
// (conv_tf32_kernel.cuh), or all at once (single_wave_tf32_kernel.cuh). Host
// only.
#pragma once

#include <vector>

#include "cuda/sm90/problem/subproblems.h"

namespace jax_convbatch::hopper {

// Of sub-problems that IsWalkable.
Plan FpropTf32Tile(const ConvGeometry& g, const SubproblemAxes& sub,
                   int multiprocessors);
Plan DgradTf32Tile(const ConvGeometry& g,
                   const std::vector<SubproblemAxes>& subs,
                   int multiprocessors);

// WithEpilogue of single_wave_plan.h.
Plan WithTf32Epilogue(const ConvGeometry& g, const Plan& plan,
                      const Epilogue& epilogue);

}  // namespace jax_convbatch::hopper
