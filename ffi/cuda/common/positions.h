// SPDX-License-Identifier: Apache-2.0
// Where and with what weights taps read, from the arrays that say it: cells and
// corners, or offsets and masks.
#pragma once

#include <cstdint>

namespace jax_convbatch {

// Entries are [pixels, offset groups, taps]. Either cells and corners, or
// offset: jax_convbatch/_deform/sampling.py says how the former follow.
struct Positions {
  const int32_t* cells = nullptr;
  const void* corners = nullptr;  // 4 weights an entry
  const void* offset = nullptr;   // (h, w) of an entry
  const void* mask = nullptr;     // or ones
  // Whether these have the type of x; or f32.
  bool narrow_offset = false, narrow_mask = false;
};

}  // namespace jax_convbatch
