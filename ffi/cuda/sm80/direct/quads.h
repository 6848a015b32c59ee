// SPDX-License-Identifier: Apache-2.0
// f32 convolutions of groups whose channels are multiples of four, on the
// ordinary cores.
#pragma once

#include <optional>

#include "cuda/sm80/direct/direct.h"

namespace jax_convbatch::direct {

inline constexpr int kQuadThreads = 256;
// Outputs in a row that a thread of fprop or dgrad computes, of four channels.
inline constexpr int kQuadPixels = 8;
// In wgrad threads of a block share its rows of outputs as so many teams; a
// thread sums so many taps of a filter row.
inline constexpr int kQuadTeams = 8, kQuadTaps = 3;

// For one group's channels from four to the most that is said in direct.cc.
std::optional<Plan> PlanQuads(Op op, const ConvGeometry& g,
                              int multiprocessors);
cudaError_t RunQuads(Op op, const Call& call, Stage stage, cudaStream_t stream);

}  // namespace jax_convbatch::direct
