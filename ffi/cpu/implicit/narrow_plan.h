// SPDX-License-Identifier: Apache-2.0
// Which convolutions narrow.h covers.
#pragma once

#include "narrow.h"
#include "scratch.h"

namespace jax_convbatch {

// The same convolution, its rows along an axis that is not 1 everywhere.
ConvGeometry Lengthwise(ConvGeometry g);

// The ring of rows takes up to so many bytes of a thread's panels.
constexpr int64_t kRingBytes = kBothBytes - 4096;

// `outs` is the number of channels of the result of a reading.
template <typename A>
Narrow PlanNarrow(const Reading& reading, int64_t outs, bool wgrad,
                  Element type);

}  // namespace jax_convbatch
