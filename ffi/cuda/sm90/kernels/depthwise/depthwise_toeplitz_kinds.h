// SPDX-License-Identifier: Apache-2.0
// The kernels of depthwise_toeplitz.cuh that there are.
#pragma once

#include "cuda/sm90/kernels/depthwise/depthwise_toeplitz.h"
#include "cuda/sm90/kernels/depthwise/depthwise_toeplitz_tiling.h"

namespace jax_convbatch::direct {

// Calls f with the ToeplitzTiling, if there is one.
template <typename F>
void ForToeplitzKind(const ToeplitzKind& kind, F&& f) {
  if (kind.sequence) {
    if (kind.row_blocks == 1) return f(ToeplitzTiling<1, 4, 5, true>());
    return f(ToeplitzTiling<2, 4, 5, true>());
  }
  const bool small = kind.row_blocks == 1;
  switch (kind.steps) {
    case 2:
      if (small) return f(ToeplitzTiling<1, 2, 2, false>());
      return f(ToeplitzTiling<2, 4, 2, false>());
    case 3:
      if (small) return f(ToeplitzTiling<1, 2, 3, false>());
      return f(ToeplitzTiling<2, 4, 3, false>());
    case 5:
      if (small) return f(ToeplitzTiling<1, 2, 5, false>());
      return f(ToeplitzTiling<2, 4, 5, false>());
  }
}

}  // namespace jax_convbatch::direct
