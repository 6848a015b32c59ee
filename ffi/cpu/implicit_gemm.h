// SPDX-License-Identifier: Apache-2.0
// FFI handlers of implicit_gemm.
#ifndef JAX_CONVBATCH_CPU_IMPLICIT_GEMM_H_
#define JAX_CONVBATCH_CPU_IMPLICIT_GEMM_H_

#include "xla/ffi/api/ffi.h"

namespace jax_convbatch {

XLA_FFI_DECLARE_HANDLER_SYMBOL(ImplicitFpropCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(ImplicitFpropActCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(ImplicitDgradCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(ImplicitWgradCpu);

}  // namespace jax_convbatch

#endif  // JAX_CONVBATCH_CPU_IMPLICIT_GEMM_H_
