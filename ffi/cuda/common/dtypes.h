// SPDX-License-Identifier: Apache-2.0
// The four floating dtypes of the FFI.
#pragma once

#include "cuda/common/floats.h"
#include "xla/ffi/api/ffi.h"

namespace jax_convbatch {

template <typename T>
struct TypeTag {
  using type = T;
};

// Calls f(TypeTag<T>) with the C++ type of `dtype`, which must be one of the
// four floating dtypes (SupportedDtype).
template <typename F>
auto DispatchDtype(xla::ffi::DataType dtype, F&& f) {
  switch (dtype) {
    case xla::ffi::F64:
      return f(TypeTag<double>());
    case xla::ffi::F16:
      return f(TypeTag<__half>());
    case xla::ffi::BF16:
      return f(TypeTag<__nv_bfloat16>());
    default:
      return f(TypeTag<float>());
  }
}

inline bool SupportedDtype(xla::ffi::DataType dtype) {
  return dtype == xla::ffi::F64 || dtype == xla::ffi::F32 ||
         dtype == xla::ffi::F16 || dtype == xla::ffi::BF16;
}

}  // namespace jax_convbatch
