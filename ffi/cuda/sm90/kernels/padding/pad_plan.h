// SPDX-License-Identifier: Apache-2.0
// Convolutions whose channels are rounded up in the workspace, so that TMA can
// take them. Host only.
#pragma once

#include <optional>

#include "cuda/sm90/problem/conv.h"
#include "cuda/sm90/problem/op.h"

namespace jax_convbatch::hopper {

// The kernels of the path kCopies.
std::optional<Plan> PlanCopies(Op op, const ConvGeometry& g, Type type,
                               int multiprocessors);
cudaError_t RunCopies(Op op, const ConvCall& call, Stage stage,
                      cudaStream_t stream);

// The same sums by tiles that leave no partial sums of K slices, for who has no
// workspace for them.
Plan WithoutPartials(Plan plan);

// Nothing where the padded copies would be large, or of no help. The samples
// of fprop and dgrad take turns in a workspace of limited size.
std::optional<Plan> PlanPads(Op op, const ConvGeometry& g, Type type,
                             int multiprocessors);
cudaError_t RunPads(Op op, const ConvCall& call, int multiprocessors,
                    Stage stage, cudaStream_t stream);

// to[outer, to_rows, to_cols] = from[outer, from_rows, from_cols], zeros where
// that has nothing. Elements of 2 or 4 bytes, fewer than 2^31 on each side.
struct Resizing {
  int64_t outer, from_rows, from_cols, to_rows, to_cols;
};
cudaError_t Resize(const Resizing& resizing, int element_bytes,
                   const void* from, void* to, Stage stage,
                   cudaStream_t stream);

}  // namespace jax_convbatch::hopper
