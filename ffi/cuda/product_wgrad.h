// wgrad of a 1x1 filter that visits every pixel once, as one product by cuBLAS:
// dw[C, K] = x[pixels, C]^T dy[pixels, K]. Part of implicit_gemm, for the few
// shapes where tiles of 64 x 128 are one wave: there cuBLAS, which needs
// neither to walk images nor to split sums, is faster than
// hopper/wgrad_kernel.cuh.
#ifndef JAX_CONVBATCH_CUDA_PRODUCT_WGRAD_H_
#define JAX_CONVBATCH_CUDA_PRODUCT_WGRAD_H_

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "conv_geometry.h"
#include "cuda/hopper/conv.h"

namespace jax_convbatch {

// The name of its only configuration.
inline constexpr const char* kProductConfig = "cublas";

// A function of the geometry, the type and the GPU alone. Needs no GPU.
bool IsProductWgrad(const ConvGeometry& g, hopper::Type type,
                    int multiprocessors);

// Without split sums and workspace; see cublas.h. kPrepare does all but the
// launch.
cublasStatus_t RunProductWgrad(const ConvGeometry& g, hopper::Type type,
                               hopper::Stage stage, cudaStream_t stream,
                               const void* x, const void* dy, void* dw);

}  // namespace jax_convbatch

#endif  // JAX_CONVBATCH_CUDA_PRODUCT_WGRAD_H_
