// SPDX-License-Identifier: Apache-2.0
// From a call to the types and numbers that kernels are compiled for.
#pragma once

#include <type_traits>

#include "causal_conv1d_call.h"
#include "cuda/common/dtypes.h"

namespace jax_convbatch::causal {

template <int kValue>
using Int = std::integral_constant<int, kValue>;

// Calls f(TypeTag<T>, Int<taps>).
template <typename F>
cudaError_t ForDtypeAndTaps(const CausalConv1d& call, F&& f) {
  auto for_taps = [&](auto tag) {
    switch (call.taps) {
      case 1:
        return f(tag, Int<1>());
      case 2:
        return f(tag, Int<2>());
      case 3:
        return f(tag, Int<3>());
      case 4:
        return f(tag, Int<4>());
      case 5:
        return f(tag, Int<5>());
      case 6:
        return f(tag, Int<6>());
      case 7:
        return f(tag, Int<7>());
      case 8:
        return f(tag, Int<8>());
      default:
        return cudaErrorInvalidValue;
    }
  };
  switch (call.dtype) {
    case ffi::F32:
      return for_taps(TypeTag<float>());
    case ffi::F16:
      return for_taps(TypeTag<__half>());
    case ffi::BF16:
      return for_taps(TypeTag<__nv_bfloat16>());
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace jax_convbatch::causal
