// SPDX-License-Identifier: Apache-2.0
// FFI handlers of deformable convolution in im2col_gemm.
#ifndef JAX_CONVBATCH_CPU_DEFORM_H_
#define JAX_CONVBATCH_CPU_DEFORM_H_

#include "xla/ffi/api/ffi.h"

namespace jax_convbatch {

XLA_FFI_DECLARE_HANDLER_SYMBOL(DeformFpropCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(DeformDgradCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(DeformWgradCpu);

}  // namespace jax_convbatch

#endif  // JAX_CONVBATCH_CPU_DEFORM_H_
