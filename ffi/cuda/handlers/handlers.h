// SPDX-License-Identifier: Apache-2.0
// The FFI handlers of this folder, as module.cc registers them.
#pragma once

#include "xla/ffi/api/c_api.h"
#include "xla/ffi/api/ffi.h"

namespace jax_convbatch {

// im2col_gemm, and per_sample, which is the same code one sample at a time.
// Execute: unrolls, multiplies, sums. Initialize: creates what cuBLAS needs.
XLA_FFI_DECLARE_HANDLER_SYMBOL(CudaFpropInitialize);
XLA_FFI_DECLARE_HANDLER_SYMBOL(CudaFpropExecute);
XLA_FFI_DECLARE_HANDLER_SYMBOL(CudaDgradInitialize);
XLA_FFI_DECLARE_HANDLER_SYMBOL(CudaDgradExecute);
XLA_FFI_DECLARE_HANDLER_SYMBOL(CudaWgradInitialize);
XLA_FFI_DECLARE_HANDLER_SYMBOL(CudaWgradExecute);

// Deformable convolution by im2col_gemm, the same stages.
XLA_FFI_DECLARE_HANDLER_SYMBOL(CudaDeformFpropInitialize);
XLA_FFI_DECLARE_HANDLER_SYMBOL(CudaDeformFpropExecute);
XLA_FFI_DECLARE_HANDLER_SYMBOL(CudaDeformDgradInitialize);
XLA_FFI_DECLARE_HANDLER_SYMBOL(CudaDeformDgradExecute);
XLA_FFI_DECLARE_HANDLER_SYMBOL(CudaDeformWgradInitialize);
XLA_FFI_DECLARE_HANDLER_SYMBOL(CudaDeformWgradExecute);

// implicit_gemm. Initialize: loads the kernels.
XLA_FFI_DECLARE_HANDLER_SYMBOL(ImplicitFpropInitialize);
XLA_FFI_DECLARE_HANDLER_SYMBOL(ImplicitFpropExecute);
XLA_FFI_DECLARE_HANDLER_SYMBOL(ImplicitFpropActInitialize);
XLA_FFI_DECLARE_HANDLER_SYMBOL(ImplicitFpropActExecute);
XLA_FFI_DECLARE_HANDLER_SYMBOL(ImplicitDgradInitialize);
XLA_FFI_DECLARE_HANDLER_SYMBOL(ImplicitDgradExecute);
XLA_FFI_DECLARE_HANDLER_SYMBOL(ImplicitWgradInitialize);
XLA_FFI_DECLARE_HANDLER_SYMBOL(ImplicitWgradExecute);

// A norm and an activation before the convolution, in one kernel.
XLA_FFI_DECLARE_HANDLER_SYMBOL(NormActFpropInitialize);
XLA_FFI_DECLARE_HANDLER_SYMBOL(NormActFpropExecute);
XLA_FFI_DECLARE_HANDLER_SYMBOL(NormActGradientInitialize);
XLA_FFI_DECLARE_HANDLER_SYMBOL(NormActGradientExecute);

// What is not finite of a result, formed again.
XLA_FFI_DECLARE_HANDLER_SYMBOL(CudaFpropNotFiniteExecute);
XLA_FFI_DECLARE_HANDLER_SYMBOL(CudaDgradNotFiniteExecute);

// cudnn. Initialize: builds the plan that is named.
XLA_FFI_DECLARE_HANDLER_SYMBOL(CudnnFpropInitialize);
XLA_FFI_DECLARE_HANDLER_SYMBOL(CudnnFpropExecute);
XLA_FFI_DECLARE_HANDLER_SYMBOL(CudnnFpropActInitialize);
XLA_FFI_DECLARE_HANDLER_SYMBOL(CudnnFpropActExecute);
XLA_FFI_DECLARE_HANDLER_SYMBOL(CudnnDgradInitialize);
XLA_FFI_DECLARE_HANDLER_SYMBOL(CudnnDgradExecute);
XLA_FFI_DECLARE_HANDLER_SYMBOL(CudnnWgradInitialize);
XLA_FFI_DECLARE_HANDLER_SYMBOL(CudnnWgradExecute);

// The short causal convolution.
XLA_FFI_DECLARE_HANDLER_SYMBOL(CudaCausalConv1dExecute);
XLA_FFI_DECLARE_HANDLER_SYMBOL(CudaCausalConv1dGradExecute);
XLA_FFI_DECLARE_HANDLER_SYMBOL(CudaCausalConv1dUpdateExecute);

XLA_FFI_DECLARE_HANDLER_SYMBOL(CudaBgradExecute);
XLA_FFI_DECLARE_HANDLER_SYMBOL(CudaActBgradExecute);
XLA_FFI_DECLARE_HANDLER_SYMBOL(CudaEpilogueExecute);
XLA_FFI_DECLARE_HANDLER_SYMBOL(CudaChannelSumsExecute);

}  // namespace jax_convbatch
