// SPDX-License-Identifier: Apache-2.0
// FFI handlers of deformable convolution in im2col_gemm.
#pragma once

#include "xla/ffi/api/ffi.h"

namespace jax_convbatch {

XLA_FFI_DECLARE_HANDLER_SYMBOL(DeformFpropCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(DeformDgradCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(DeformWgradCpu);

}  // namespace jax_convbatch
