// SPDX-License-Identifier: Apache-2.0
// The operations by whichever path suits a geometry. Host only.
#pragma once

#include <optional>

#include "cuda/sm90/problem/conv.h"
#include "cuda/sm90/problem/op.h"

namespace jax_convbatch::hopper {

// Whether there are kernels for a convolution of several groups: IsGroups2d,
// but for what is a product of each group as it stands.
bool TakesGroups(Op op, const ConvGeometry& g, Type type, int multiprocessors);

// The geometry that PlanPath and RunPath take a convolution of one group for:
// the same memory with fewer pixels or taps of more channels each.
ConvGeometry Fold(Op op, const ConvGeometry& g, Type type);

// The plan for a GPU of so many SMs, or nothing where no path can run it: all
// take convolutions of two or three axes without input dilation, of one group,
// or of several where TakesGroups. Needs no GPU.
std::optional<Plan> PlanPath(Op op, const ConvGeometry& g, Type type,
                             int multiprocessors);

// Whether what runs a plan of fprop forms an epilogue in the store of a tile.
bool HasEpilogue(const Plan& plan, const ConvGeometry& g, Type type);

// Whether that epilogue can keep the result's ReLU bitmask.
bool HasReluBitmask(const Plan& plan, const ConvGeometry& g, Type type);

// Runs a plan of PlanPath for the same `multiprocessors`; see conv.h.
cudaError_t RunPath(Op op, const ConvCall& call, int multiprocessors,
                    Stage stage, cudaStream_t stream);

}  // namespace jax_convbatch::hopper
