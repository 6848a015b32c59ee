// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace jax_convbatch::hopper {

// The taps that one sub-problem of the output uses along one axis: tap index
// `tap + i * tap_step` reads at `i * offset_step` from the base pixel.
struct TapAxis {
  int count, tap, tap_step, offset_step;
};

}  // namespace jax_convbatch::hopper
