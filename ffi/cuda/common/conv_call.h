// SPDX-License-Identifier: Apache-2.0
// What the handlers of fprop, dgrad and wgrad have in common, whatever the
// engine: their arguments and the checks of them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string_view>
#include <utility>

#include "conv_geometry.h"
#include "ffi_checks.h"

namespace jax_convbatch {

enum class Operation { kFprop, kDgrad, kWgrad };

inline const char* Name(Operation operation) {
  switch (operation) {
    case Operation::kFprop:
      return "fprop";
    case Operation::kDgrad:
      return "dgrad";
    default:
      return "wgrad";
  }
}

// fprop: lhs x, rhs w, result y. dgrad: lhs dy, rhs w, result dx. wgrad: lhs x,
// rhs dy, result dw.
struct ConvBuffers {
  ffi::AnyBuffer lhs, rhs, result, workspace;
};

// Sizes and alignment.
inline ffi::Error CheckBuffers(Operation operation, const ConvGeometry& g,
                               const ConvBuffers& buffers) {
  const char* name = Name(operation);
  auto x = [&](const char* role, const ffi::AnyBuffer& buffer) {
    return CheckSize(name, g, role, buffer, g.x_size());
  };
  auto w = [&](const char* role, const ffi::AnyBuffer& buffer) {
    return CheckSize(name, g, role, buffer, g.w_size());
  };
  auto y = [&](const char* role, const ffi::AnyBuffer& buffer) {
    return CheckSize(name, g, role, buffer, g.y_size());
  };
  switch (operation) {
    case Operation::kFprop:
      JCB_RETURN_IF_ERROR(x("x", buffers.lhs));
      JCB_RETURN_IF_ERROR(w("w", buffers.rhs));
      JCB_RETURN_IF_ERROR(y("y", buffers.result));
      break;
    case Operation::kDgrad:
      JCB_RETURN_IF_ERROR(y("dy", buffers.lhs));
      JCB_RETURN_IF_ERROR(w("w", buffers.rhs));
      JCB_RETURN_IF_ERROR(x("dx", buffers.result));
      break;
    default:
      JCB_RETURN_IF_ERROR(x("x", buffers.lhs));
      JCB_RETURN_IF_ERROR(y("dy", buffers.rhs));
      JCB_RETURN_IF_ERROR(w("dw", buffers.result));
  }
  for (const ffi::AnyBuffer& buffer :
       {buffers.lhs, buffers.rhs, buffers.result, buffers.workspace}) {
    if (reinterpret_cast<uintptr_t>(buffer.untyped_data()) % 16 != 0) {
      return ffi::Error::Internal(
          "jax_convbatch: a buffer is not aligned to 16 bytes in " +
          Describe(name, g));
    }
  }
  return ffi::Error::Success();
}

inline ffi::Error UnsupportedDtypes(Operation operation,
                                    const ConvGeometry& g) {
  return ffi::Error::InvalidArgument("jax_convbatch: unsupported dtypes in " +
                                     Describe(Name(operation), g));
}

// What all stages of the three operations are given.
template <typename Binding>
auto BindConv(Binding&& binding) {
  return std::forward<Binding>(binding)
      .template Arg<ffi::AnyBuffer>()  // x, dy, x
      .template Arg<ffi::AnyBuffer>()  // w, w, dy
      .template Ret<ffi::AnyBuffer>()  // y, dx, dw
      .template Ret<ffi::AnyBuffer>()  // workspace
      .template Attr<ConvGeometry>("geometry")
      .template Attr<int64_t>("slice")
      .template Attr<int64_t>("precision");
}

inline auto BindConvExecute() {
  return BindConv(ffi::Ffi::Bind().Ctx<ffi::PlatformStream<cudaStream_t>>());
}

inline auto BindConvInitialize() {
  return BindConv(ffi::Ffi::BindInitialize());
}

// Of engines that have several configurations.
inline auto BindConfiguredExecute() {
  return BindConvExecute().Attr<std::string_view>("config");
}

inline auto BindConfiguredInitialize() {
  return BindConvInitialize().Attr<std::string_view>("config");
}

}  // namespace jax_convbatch
