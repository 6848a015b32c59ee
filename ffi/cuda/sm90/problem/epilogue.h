// SPDX-License-Identifier: Apache-2.0
// What may follow fprop in the store of its tiles:
// z = scale[K] conv(x, w) + bias[K] + residual, y = activation(z).
#pragma once

#include <cuda.h>

#include <cstdint>

#include "activation.h"

namespace jax_convbatch::hopper {

// Of a convolution alone. kOverlaps: a large tile is better written while the
// one before it is still stored than read from one stage more.
struct NoEpilogue {
  static constexpr bool kPresent = false, kPlain = false, kOverlaps = false;
};

// Arrays are of the result's type, null where there is none; residual and z lie
// like the result. bitmask: of relu, a bit for each element, whether y > 0: K /
// 8 bytes a pixel, the first channel of eight in the lowest bit.
struct Epilogue {
  static constexpr bool kPresent = true, kPlain = false, kOverlaps = true;
  CUtensorMap residual_boxes;  // of 16-bit types, as the output's
  const void *scale, *bias, *residual;
  void* z;
  uint8_t* bitmask;
  Activation activation;

  // Whether a bias, and relu or nothing, is all that follows.
  JCB_HOST_DEVICE bool is_plain() const {
    return scale == nullptr && residual == nullptr && z == nullptr &&
           (activation == Activation::kRelu ||
            activation == Activation::kIdentity);
  }
};

// What is plain, for kernels of 16-bit types that do nothing else.
template <bool kBitmask_>
struct PlainEpilogue {
  static constexpr bool kPresent = true, kPlain = true, kBitmask = kBitmask_;
  static constexpr bool kOverlaps = kBitmask;
  const void* bias;
  uint8_t* bitmask;
  bool relu;
  float minus_zero = -0.0f;  // as compilers do not know it
};

}  // namespace jax_convbatch::hopper
