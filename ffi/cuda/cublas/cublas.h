// SPDX-License-Identifier: Apache-2.0
// Strided-batched matrix products whose bits do not depend on the batch count.
//
// cuBLAS chooses its kernel by a heuristic that sees the batch count, so one
// product of 33 samples and 33 products of one sample differ in their rounding.
// Here an algorithm is chosen once, for a canonical product, and then used for
// every number of samples.
#pragma once

#include <cublasLt.h>

#include <cstdint>

namespace jax_convbatch {

// d[i] = op(a[i]) * op(b[i]) for i < batch, all matrices row-major: op(a) is
// m x k, op(b) is k x n, d is m x n. Strides and leading dimensions count
// elements.
struct Gemm {
  cudaDataType_t operand_type;
  cudaDataType_t result_type;
  cublasComputeType_t compute_type;
  bool transpose_a, transpose_b;
  int64_t m, n, k;
  int64_t lda, ldb, ldd;
  int64_t batch, stride_a, stride_b, stride_d;
  // What the address of every a, b and d passed with this product, and of every
  // matrix of its batch, is a multiple of.
  int64_t align_a, align_b, align_d;
  // What a product may have to split its sum over k, whose parts are added in
  // order; 0: it is not split.
  int64_t workspace;
};

// An algorithm for one description of a product on one device.
struct GemmAlgorithm {
  cublasLtHandle_t handle;
  cublasLtMatmulAlgo_t algorithm;
};

// The algorithm that cuBLAS recommends for `canonical` on the current device,
// among those within its workspace that can also run `smallest`. Kept
// for the life of the process, so that the same call always gives the same one.
// Safe to call from several threads.
cublasStatus_t FindAlgorithm(const Gemm& canonical, const Gemm& smallest,
                             GemmAlgorithm* found);

// Enqueues a product. Allocates nothing and waits for nothing. `workspace` is
// aligned to 256 bytes.
cublasStatus_t RunGemm(cudaStream_t stream, const GemmAlgorithm& algorithm,
                       const Gemm& gemm, const void* a, const void* b, void* d,
                       void* workspace = nullptr);

}  // namespace jax_convbatch
