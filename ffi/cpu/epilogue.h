// SPDX-License-Identifier: Apache-2.0
// FFI handler of the layer's pass over conv(x, w).
#pragma once

#include "xla/ffi/api/ffi.h"

namespace jax_convbatch {

XLA_FFI_DECLARE_HANDLER_SYMBOL(EpilogueCpu);

}  // namespace jax_convbatch
