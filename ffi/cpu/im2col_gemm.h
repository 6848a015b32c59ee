// SPDX-License-Identifier: Apache-2.0
// FFI handlers of im2col_gemm and per_sample.
#pragma once

#include "xla/ffi/api/ffi.h"

namespace jax_convbatch {

// Both engines: the BLAS has no batched product, so what tells them apart here
// is the number of samples in a slice, and per_sample is a slice of one.
XLA_FFI_DECLARE_HANDLER_SYMBOL(FpropCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(DgradCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(WgradCpu);

}  // namespace jax_convbatch
