// SPDX-License-Identifier: Apache-2.0
// cuDNN's C++ frontend, as this folder compiles it. It is large: only sources
// that build graphs include it.
#pragma once

// The library is looked up when it is used; plans are not written as JSON.
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB

#include <cudnn_frontend.h>

#include <stdexcept>

namespace jax_convbatch::cudnn {

// Errors become std::runtime_error.
inline void Throw(cudnn_frontend::error_t error) {
  if (error.is_bad()) throw std::runtime_error(error.get_message());
}
inline void Throw(cudnnStatus_t status) {
  if (status != CUDNN_STATUS_SUCCESS) {
    throw std::runtime_error(cudnn_frontend::detail::get_error_string(status));
  }
}

}  // namespace jax_convbatch::cudnn
