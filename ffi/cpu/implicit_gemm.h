// SPDX-License-Identifier: Apache-2.0
// FFI handlers of implicit_gemm.
#pragma once

#include "xla/ffi/api/ffi.h"

namespace jax_convbatch {

XLA_FFI_DECLARE_HANDLER_SYMBOL(ImplicitFpropCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(ImplicitFpropActCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(ImplicitDgradCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(ImplicitWgradCpu);

}  // namespace jax_convbatch
