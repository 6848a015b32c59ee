// SPDX-License-Identifier: Apache-2.0
// What the FFI handlers of the CPU's engines share.
#pragma once

#include <algorithm>

#include "ffi_checks.h"
#include "half.h"
#include "huge_pages.h"
#include "stopwatch.h"

namespace jax_convbatch {

template <typename T>
T* Data(ffi::AnyBuffer buffer) {
  return static_cast<T*>(buffer.untyped_data());
}

// Calls run(T{}) with the element type of `dtype`.
template <typename Run>
ffi::Error Dispatch(const char* op, const ConvGeometry& g, ffi::DataType dtype,
                    Run run) {
  switch (dtype) {
    case ffi::F32:
      return run(float{});
    case ffi::F64:
      return run(double{});
    case ffi::F16:
      return run(Half{});
    case ffi::BF16:
      return run(BFloat16{});
    default:
      return ffi::Error::InvalidArgument(
          "jax_convbatch: unsupported dtype in " + Describe(op, g));
  }
}

// An operand or the result of a convolution, and the elements that it has.
struct Role {
  const char* name;
  ffi::AnyBuffer buffer;
  int64_t size;
};

// Sizes, and one dtype for all; that of the result may be the arithmetic's if
// it `may_widen`.
inline ffi::Error CheckRoles(const char* op, const ConvGeometry& g,
                             const Role& first, const Role& second,
                             const Role& result, bool may_widen = false) {
  for (const Role* role : {&first, &second, &result}) {
    JCB_RETURN_IF_ERROR(CheckSize(op, g, role->name, role->buffer, role->size));
  }
  const ffi::DataType dtype = first.buffer.element_type();
  const ffi::DataType wide = dtype == ffi::F64 ? ffi::F64 : ffi::F32;
  const ffi::DataType out = result.buffer.element_type();
  if (second.buffer.element_type() == dtype &&
      (out == dtype || (may_widen && out == wide))) {
    return ffi::Error::Success();
  }
  return ffi::Error::InvalidArgument("jax_convbatch: dtypes that differ in " +
                                     Describe(op, g));
}

// Zeros where nothing is summed, otherwise run(), timed.
template <typename Run>
ffi::Error RunOrZero(bool empty_sum, ffi::AnyBuffer result, Run run) {
  if (result.element_count() == 0) return ffi::Error::Success();
  if (empty_sum) {
    std::fill_n(Data<char>(result), result.size_bytes(), 0);
    return ffi::Error::Success();
  }
  const Stopwatch watch(&handlers_time);
  AskForHugePages({result});
  return run();
}

// Two operands, the result and the workspace, and the same attributes for all.
inline auto ConvBinding() {
  return ffi::Ffi::Bind()
      .Arg<ffi::AnyBuffer>()
      .Arg<ffi::AnyBuffer>()
      .Ret<ffi::AnyBuffer>()
      .Ret<ffi::AnyBuffer>(/*workspace*/)
      .Attr<ConvGeometry>("geometry")
      .Attr<int64_t>("slice")
      .Attr<int64_t>("precision");
}

}  // namespace jax_convbatch
