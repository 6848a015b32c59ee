// SPDX-License-Identifier: Apache-2.0
// CUDA and cuBLAS failures as FFI errors.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <string>

#include "xla/ffi/api/ffi.h"

namespace jax_convbatch {

// `where` is called only on failure and names the operation and its sizes.
template <typename Where>
xla::ffi::Error ToError(cudaError_t status, Where&& where) {
  if (status == cudaSuccess) return xla::ffi::Error::Success();
  return xla::ffi::Error::Internal(
      std::string("jax_convbatch: CUDA failed with ") +
      cudaGetErrorName(status) + " (" + cudaGetErrorString(status) + ") in " +
      where());
}

template <typename Where>
xla::ffi::Error ToError(cublasStatus_t status, Where&& where) {
  if (status == CUBLAS_STATUS_SUCCESS) return xla::ffi::Error::Success();
  return xla::ffi::Error::Internal(
      std::string("jax_convbatch: cuBLAS failed with ") +
      cublasLtGetStatusName(status) + " (" + cublasLtGetStatusString(status) +
      ") in " + where());
}

}  // namespace jax_convbatch
