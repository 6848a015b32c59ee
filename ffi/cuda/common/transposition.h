// SPDX-License-Identifier: Apache-2.0
// A matrix of f32 that is to be transposed.
#pragma once

namespace jax_convbatch {

// from[rows, columns]; none where `to` is null.
struct Transposition {
  const float* from = nullptr;
  float* to = nullptr;
  int rows = 0, columns = 0;
};

}  // namespace jax_convbatch
