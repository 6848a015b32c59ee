// cuDNN's C++ frontend, as this folder compiles it. It is large: only sources
// that build graphs include it.
#ifndef JAX_CONVBATCH_CUDA_CUDNN_FRONTEND_H_
#define JAX_CONVBATCH_CUDA_CUDNN_FRONTEND_H_

// The library is looked up when it is used; plans are not written as JSON.
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB

#include <cudnn_frontend.h>

#endif  // JAX_CONVBATCH_CUDA_CUDNN_FRONTEND_H_
