// What may follow fprop in the store of its tiles:
// z = scale[K] conv(x, w) + bias[K] + residual, y = activation(z).
#ifndef JAX_CONVBATCH_CUDA_HOPPER_EPILOGUE_H_
#define JAX_CONVBATCH_CUDA_HOPPER_EPILOGUE_H_

#include <cuda.h>

#include <limits>

#include "activation.h"

namespace jax_convbatch::hopper {

// Of a convolution alone.
struct NoEpilogue {
  static constexpr bool kPresent = false;
};

// Arrays are of the result's type, null where there is none; residual and z lie
// like the result.
struct Epilogue {
  static constexpr bool kPresent = true;
  CUtensorMap residual_boxes;  // of 16-bit types, as the output's
  const void *scale, *bias, *residual;
  void* z;
  Activation activation;
  // The activation is max(z, max(slope z, floor)), at most cap, if not smooth.
  bool smooth;
  float slope, floor, cap;
};

inline Epilogue MakeEpilogue(Activation activation, const void* scale,
                             const void* bias, const void* residual, void* z) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  Epilogue e{};
  e.scale = scale;
  e.bias = bias;
  e.residual = residual;
  e.z = z;
  e.activation = activation;
  e.slope = 1;
  e.floor = -kInfinity;
  e.cap = kInfinity;
  switch (activation) {
    case Activation::kIdentity:
      break;
    case Activation::kLeakyRelu:
      e.slope = static_cast<float>(kLeakySlope);
      break;
    case Activation::kRelu6:
      e.cap = 6;
      [[fallthrough]];
    case Activation::kRelu:
      e.slope = e.floor = 0;
      break;
    default:
      e.smooth = true;
  }
  return e;
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_EPILOGUE_H_
