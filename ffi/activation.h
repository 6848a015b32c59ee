// SPDX-License-Identifier: Apache-2.0
// The activations of the fused layer, for the host and for CUDA: their values
// from the pre-activation z, and their derivatives from what is saved, which is
// y where the derivative follows from it and z otherwise.
//
// jax_convbatch/_layers/activations.py has the same functions in jax.numpy.
#pragma once

#include <optional>
#include <string_view>
#include <type_traits>

#include "activation_math.h"

namespace jax_convbatch {

enum class Activation {
  kIdentity,
  kRelu,
  kRelu6,
  kLeakyRelu,
  kElu,
  kSigmoid,
  kTanh,
  kGelu,       // by tanh
  kGeluExact,  // by erf
  kSilu,
};

// By the name that the attribute "activation" carries.
inline std::optional<Activation> ParseActivation(std::string_view name) {
  constexpr struct {
    std::string_view name;
    Activation activation;
  } kNames[] = {
      {"identity", Activation::kIdentity},
      {"relu", Activation::kRelu},
      {"relu6", Activation::kRelu6},
      {"leaky_relu", Activation::kLeakyRelu},
      {"elu", Activation::kElu},
      {"sigmoid", Activation::kSigmoid},
      {"tanh", Activation::kTanh},
      {"gelu", Activation::kGelu},
      {"gelu_exact", Activation::kGeluExact},
      {"silu", Activation::kSilu},
  };
  for (const auto& entry : kNames) {
    if (entry.name == name) return entry.activation;
  }
  return std::nullopt;
}

// Whether the derivative wants z; otherwise it follows from y.
constexpr bool SavesInput(Activation a) {
  return a == Activation::kGelu || a == Activation::kGeluExact ||
         a == Activation::kSilu;
}

inline constexpr double kLeakySlope = 0.01;

// 2 sqrt(2 / pi) (z + 0.044715 z^3): gelu is z sigmoid of it.
template <typename F>
JCB_HOST_DEVICE F GeluArgument(F z) {
  return F(1.5957691216057308) * z * (F(1) + F(0.044715) * z * z);
}

// y from z; F is float or double. nan stays nan.
template <typename F>
JCB_HOST_DEVICE F Activate(Activation a, F z) {
  switch (a) {
    case Activation::kRelu:
      return z < F(0) ? F(0) : z;
    case Activation::kRelu6:
      return z < F(0) ? F(0) : (z > F(6) ? F(6) : z);
    case Activation::kLeakyRelu:
      return z < F(0) ? F(kLeakySlope) * z : z;
    case Activation::kElu: {
      const F low = math::Expm1Negative(z > F(0) ? F(0) : z);
      return z > F(0) ? z : low;
    }
    case Activation::kSigmoid:
      return math::Sigmoid(z);
    case Activation::kTanh:
      return math::Tanh(z);
    case Activation::kGelu:
      return z * math::Sigmoid(GeluArgument(z));
    case Activation::kGeluExact:
      return z * math::NormalCdf(z);
    case Activation::kSilu:
      return z * math::Sigmoid(z);
    default:
      return z;
  }
}

// z times the density of the normal distribution. The host's Exp ends at the
// smallest normal number, which times a large z would be no zero.
template <typename F>
JCB_HOST_DEVICE F TimesNormalDensity(F z) {
  const F product = z * F(0.3989422804014327) * math::Exp(F(-0.5) * z * z);
#ifdef __CUDA_ARCH__
  return product;
#else
  constexpr F kMost = sizeof(F) == 4 ? F(174) : F(1416);
  return z * z > kMost ? F(0) : product;
#endif
}

// dz from dy and what was saved. Where the derivative is 0 or 1 nothing is
// multiplied, so that inf and nan in dy stay out.
template <typename F>
JCB_HOST_DEVICE F ActivationGrad(Activation a, F saved, F dy) {
  switch (a) {
    case Activation::kRelu:
      return saved > F(0) ? dy : F(0);
    case Activation::kRelu6:
      return saved > F(0) && saved < F(6) ? dy : F(0);
    case Activation::kLeakyRelu:
      return saved >= F(0) ? dy : F(kLeakySlope) * dy;
    case Activation::kElu:
      return saved > F(0) ? dy : dy * (saved + F(1));
    case Activation::kSigmoid:
      return dy * (saved * (F(1) - saved));
    case Activation::kTanh:
      return dy * (F(1) - saved * saved);
    case Activation::kGelu: {
      const F s = math::Sigmoid(GeluArgument(saved));
      const F slope =
          F(1.5957691216057308) * (F(1) + F(3 * 0.044715) * saved * saved);
      return dy * (s + saved * s * (F(1) - s) * slope);
    }
    case Activation::kGeluExact:
      return dy * (math::NormalCdf(saved) + TimesNormalDensity(saved));
    case Activation::kSilu: {
      const F s = math::Sigmoid(saved);
      return dy * (s + s * (saved - saved * s));
    }
    default:
      return dy;
  }
}

template <Activation kValue>
using ActivationTag = std::integral_constant<Activation, kValue>;

// Calls f(ActivationTag<a>), so that the switches above fold: whatever f does
// is there once for each. f may be for the host alone, or for the device.
#ifdef __CUDACC__
#pragma nv_exec_check_disable
#endif
template <typename F>
JCB_HOST_DEVICE auto DispatchActivation(Activation a, F&& f) {
  switch (a) {
    case Activation::kRelu:
      return f(ActivationTag<Activation::kRelu>());
    case Activation::kRelu6:
      return f(ActivationTag<Activation::kRelu6>());
    case Activation::kLeakyRelu:
      return f(ActivationTag<Activation::kLeakyRelu>());
    case Activation::kElu:
      return f(ActivationTag<Activation::kElu>());
    case Activation::kSigmoid:
      return f(ActivationTag<Activation::kSigmoid>());
    case Activation::kTanh:
      return f(ActivationTag<Activation::kTanh>());
    case Activation::kGelu:
      return f(ActivationTag<Activation::kGelu>());
    case Activation::kGeluExact:
      return f(ActivationTag<Activation::kGeluExact>());
    case Activation::kSilu:
      return f(ActivationTag<Activation::kSilu>());
    default:
      return f(ActivationTag<Activation::kIdentity>());
  }
}

}  // namespace jax_convbatch
