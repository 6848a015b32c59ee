// SPDX-License-Identifier: Apache-2.0
// The arguments of handlers that run fprop and what follows it in one call.
#pragma once

#include <string_view>
#include <utility>

#include "conv_geometry.h"
#include "epilogue_call.h"
#include "ffi_checks.h"

namespace jax_convbatch {

template <typename Binding>
auto BindLayer(Binding&& binding) {
  return std::forward<Binding>(binding)
      .template Arg<ffi::AnyBuffer>()  // x
      .template Arg<ffi::AnyBuffer>()  // w
      .RemainingArgs()                 // of scale, bias, residual
      .template Ret<ffi::AnyBuffer>()  // y
      .template Ret<ffi::AnyBuffer>()  // workspace
      .RemainingRets()                 // z and bitmask, where they are saved
      .template Attr<ConvGeometry>("geometry")
      .template Attr<int64_t>("slice")
      .template Attr<int64_t>("precision")
      .template Attr<std::string_view>("config")
      .template Attr<EpilogueAttributes>("epilogue");
}

}  // namespace jax_convbatch
