// SPDX-License-Identifier: Apache-2.0
// fprop of f32 whose filter is transposed first, so that it goes to the
// multiplier as dgrad's does, from shared memory and not through registers. The
// bits are the same. Host only.
#pragma once

#include <cstdint>

#include "cuda/sm90/problem/conv.h"

namespace jax_convbatch::hopper {

// Whether a plan of fprop may be kTransposed.
inline bool MayTranspose(const ConvGeometry& g, Type type) {
  return type == Type::kTf32 && g.groups == 1;
}

inline int64_t TransposedBytes(const ConvGeometry& g) {
  return g.w_size() * int64_t{sizeof(float)};
}

// `plan`, PlanFprop's, or one that is kTransposed or kHalo where that is faster
// (select/conv_tf32_plan.cc).
Plan OrTransposed(const Plan& plan, const ConvGeometry& g, Type type,
                  int multiprocessors);

// Runs one; see conv.h.
cudaError_t FpropTransposedTf32(const ConvCall& call, Stage stage,
                                cudaStream_t stream);

}  // namespace jax_convbatch::hopper
