// SPDX-License-Identifier: Apache-2.0
// wgrad of implicit_gemm: dw = columns(x)^T * dy, class by class.
//
// The pixels that are summed are cut into parts by a rule of the geometry alone
// (jax_convbatch/_plans/planners.py); each part is summed from zero, and the
// parts are added in order. Where there is a workspace the parts are tasks of
// their own, otherwise one task forms one after the other: the bits are the
// same.
#pragma once

#include "columns.h"

namespace jax_convbatch {

struct Wgrad {
  const ConvGeometry& g;
  const void *x, *dy;
  void* dw;
  Element type;  // of all three
  int64_t parts;
  void* workspace;  // of `parts` sums of g.w_size() elements, or null

  // `A` is the type of the arithmetic.
  template <typename A>
  void Run() const;
};

}  // namespace jax_convbatch
