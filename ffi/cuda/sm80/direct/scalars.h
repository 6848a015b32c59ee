// SPDX-License-Identifier: Apache-2.0
// f32 convolutions of a few channels, on both sides or to outputs that are no
// fours, on the ordinary cores: of these, tiles of matrices would be zeros for
// the most part.
#pragma once

#include <optional>

#include "cuda/sm80/direct/direct.h"

namespace jax_convbatch::direct {

inline constexpr int kScalarThreads = 256;
// Rows of outputs that a thread computes. Of up to kMostScalarOutputs channels
// it has all, in one row of a sequence; of more two or four, in several rows.
// It has more rows of one channel and of shared ones where threads are left
// enough.
inline constexpr int kScalarRows = 4, kMoreScalarRows = 8;
inline constexpr int kMostScalarOutputs = 6;

// Whether its rows are pixels of the only axis.
inline bool IsSequence(const ConvGeometry& g) { return g.H * g.P * g.R == 1; }

// fprop and dgrad of one group, one to three spatial axes, steps of one, any
// padding and filter dilation.
std::optional<Plan> PlanScalars(Op op, const ConvGeometry& g, Type type,
                                int multiprocessors);
cudaError_t RunScalars(Op op, const Call& call, Stage stage,
                       cudaStream_t stream);

}  // namespace jax_convbatch::direct
