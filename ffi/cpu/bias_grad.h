// FFI handler of the bias gradient.
#ifndef JAX_CONVBATCH_CPU_BIAS_GRAD_H_
#define JAX_CONVBATCH_CPU_BIAS_GRAD_H_

#include "xla/ffi/api/ffi.h"

namespace jax_convbatch {

XLA_FFI_DECLARE_HANDLER_SYMBOL(BiasGradCpu);

}  // namespace jax_convbatch

#endif  // JAX_CONVBATCH_CPU_BIAS_GRAD_H_
