// SPDX-License-Identifier: Apache-2.0
// An operation of the engine implicit_gemm, for handlers of several.
#ifndef JAX_CONVBATCH_CUDA_HANDLERS_IMPLICIT_GEMM_H_
#define JAX_CONVBATCH_CUDA_HANDLERS_IMPLICIT_GEMM_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string_view>

#include "cuda/common/conv_call.h"
#include "ffi_checks.h"

namespace jax_convbatch {

// As the handlers of the three operations: checks the buffers and launches, or,
// without `launch`, prepares what launches need, once.
ffi::Error RunImplicitGemm(Operation operation, const ConvBuffers& buffers,
                           const ConvGeometry& g, int64_t precision,
                           std::string_view config, bool launch,
                           cudaStream_t stream);

}  // namespace jax_convbatch

#endif  // JAX_CONVBATCH_CUDA_HANDLERS_IMPLICIT_GEMM_H_
