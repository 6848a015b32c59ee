// SPDX-License-Identifier: Apache-2.0
// FFI handler of the layer's pass over conv(x, w).
#ifndef JAX_CONVBATCH_CPU_EPILOGUE_H_
#define JAX_CONVBATCH_CPU_EPILOGUE_H_

#include "xla/ffi/api/ffi.h"

namespace jax_convbatch {

XLA_FFI_DECLARE_HANDLER_SYMBOL(EpilogueCpu);

}  // namespace jax_convbatch

#endif  // JAX_CONVBATCH_CPU_EPILOGUE_H_
