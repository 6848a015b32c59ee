// SPDX-License-Identifier: Apache-2.0
// wgrad of a 1x1 filter that visits every pixel once, as one product by cuBLAS:
// dw[C, K] = x[pixels, C]^T dy[pixels, K]. Part of implicit_gemm, for the
// shapes where cuBLAS, which does not walk images, is faster than
// wgrad_kernel.cuh.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>

#include "conv_geometry.h"
#include "cuda/sm90/problem/conv.h"

namespace jax_convbatch {

// The name of its only configuration.
inline constexpr const char* kProductConfig = "cublas";

// The sum over pixels is one product's, or that of several, each of as many
// pixels, whose results are f32 and added by a kernel of our own.
struct ProductWgrad {
  int64_t splits;
  int64_t workspace;  // bytes
};

// Nothing where it is not for this wgrad. A function of the geometry, the type
// and the GPU alone. Needs no GPU.
std::optional<ProductWgrad> PlanProductWgrad(const ConvGeometry& g,
                                             hopper::Type type,
                                             int multiprocessors);

// See cublas.h. kPrepare does all but the launch.
cublasStatus_t RunProductWgrad(const ConvGeometry& g, hopper::Type type,
                               const ProductWgrad& plan, Stage stage,
                               cudaStream_t stream, const void* x,
                               const void* dy, void* dw, void* workspace);

}  // namespace jax_convbatch
