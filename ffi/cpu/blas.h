// SPDX-License-Identifier: Apache-2.0
// Matrix products by the BLAS that scipy carries.
#pragma once

#include <cstdint>

namespace jax_convbatch {

// Looks the routines up in scipy.linalg.cython_blas, as jaxlib does for its
// LAPACK: no link dependency, and one thread pool with jax.scipy. Throws a
// Python exception where they are missing or take another integer type.
// Must be called with the GIL held, before Gemm.
void LoadBlas();

// C[M, N] = op(A) op(B) + beta C, row-major with the given row lengths, where
// op(A)[M, K] is A or, if `transpose_a`, the transpose of A[K, M]; likewise B.
template <typename T>
void Gemm(bool transpose_a, bool transpose_b, int64_t M, int64_t N, int64_t K,
          const T* A, int64_t lda, const T* B, int64_t ldb, T beta, T* C,
          int64_t ldc);

}  // namespace jax_convbatch
