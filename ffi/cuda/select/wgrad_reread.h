// SPDX-License-Identifier: Apache-2.0
// What wgrad's blocks read from memory more than once. Host only.
#pragma once

#include "cuda/sm90/problem/wgrad_tiling.h"

namespace jax_convbatch::hopper {

// Of x, that some tap reads; and of dy.
inline double XBytes(const ConvGeometry& g, Type type) {
  return ElementBytes(type) * ShareRead(g) * static_cast<double>(g.x_size());
}
inline double YBytes(const ConvGeometry& g, Type type) {
  return ElementBytes(type) * static_cast<double>(g.y_size());
}

// Bytes of x and dy beyond reading each once: blocks find in the L2 what those
// in step with them read, and of small arrays what any other did. Blocks whose
// shares cut tiles at other places pass over the pixels at another pace, and
// large arrays come from memory again for each: dw of 131072 steps of
// 1152->1152, one tap, in bf16 616 us by 132 blocks for 54 tiles of 192x128,
// 511 by 108 (H200). Several groups share nothing; halos (HaloTiling) are not
// asked for.
double BytesReadAgain(const ConvGeometry& g, Type type, const Plan& plan);

}  // namespace jax_convbatch::hopper
