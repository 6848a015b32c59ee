// SPDX-License-Identifier: Apache-2.0
// FFI handlers of the bias gradient, alone and with an activation's derivative.
#pragma once

#include "xla/ffi/api/ffi.h"

namespace jax_convbatch {

XLA_FFI_DECLARE_HANDLER_SYMBOL(BiasGradCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(ActBgradCpu);

}  // namespace jax_convbatch
