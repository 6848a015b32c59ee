// SPDX-License-Identifier: Apache-2.0
#include "cuda/cublas/cublas.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>

namespace jax_convbatch {
namespace {

#define JCB_RETURN_IF_CUBLAS_ERROR(...)                           \
  do {                                                            \
    const cublasStatus_t jcb_status_ = (__VA_ARGS__);             \
    if (jcb_status_ != CUBLAS_STATUS_SUCCESS) return jcb_status_; \
  } while (0)

// Kernels put the batch in a grid dimension of at most 65535 blocks.
constexpr int64_t kMaxBatch = 32768;
constexpr int kCandidates = 16;

int64_t BytesOf(cudaDataType_t type) {
  switch (type) {
    case CUDA_R_64F:
      return 8;
    case CUDA_R_32F:
      return 4;
    default:
      return 2;
  }
}

// cuBLAS's view of a product. cuBLAS is column-major, so it is given
// d^T = op(b)^T op(a)^T: its first operand is our b.
struct Descriptors {
  cublasLtMatmulDescOpaque_t product;
  cublasLtMatrixLayoutOpaque_t a, b, d;

  cublasStatus_t Init(const Gemm& gemm, int64_t batch) {
    const cudaDataType_t scale_type =
        gemm.compute_type == CUBLAS_COMPUTE_64F ? CUDA_R_64F : CUDA_R_32F;
    JCB_RETURN_IF_CUBLAS_ERROR(
        cublasLtMatmulDescInit(&product, gemm.compute_type, scale_type));
    JCB_RETURN_IF_CUBLAS_ERROR(
        SetTranspose(CUBLASLT_MATMUL_DESC_TRANSA, gemm.transpose_b));
    JCB_RETURN_IF_CUBLAS_ERROR(
        SetTranspose(CUBLASLT_MATMUL_DESC_TRANSB, gemm.transpose_a));
    const int64_t a_rows = gemm.transpose_a ? gemm.k : gemm.m;
    const int64_t a_columns = gemm.transpose_a ? gemm.m : gemm.k;
    const int64_t b_rows = gemm.transpose_b ? gemm.n : gemm.k;
    const int64_t b_columns = gemm.transpose_b ? gemm.k : gemm.n;
    JCB_RETURN_IF_CUBLAS_ERROR(InitLayout(&a, gemm.operand_type, a_rows,
                                          a_columns, gemm.lda, batch,
                                          gemm.stride_a));
    JCB_RETURN_IF_CUBLAS_ERROR(InitLayout(&b, gemm.operand_type, b_rows,
                                          b_columns, gemm.ldb, batch,
                                          gemm.stride_b));
    return InitLayout(&d, gemm.result_type, gemm.m, gemm.n, gemm.ldd, batch,
                      gemm.stride_d);
  }

 private:
  cublasStatus_t SetTranspose(cublasLtMatmulDescAttributes_t which, bool on) {
    const cublasOperation_t operation = on ? CUBLAS_OP_T : CUBLAS_OP_N;
    return cublasLtMatmulDescSetAttribute(&product, which, &operation,
                                          sizeof(operation));
  }

  // A row-major matrix is the column-major one of swapped sizes.
  static cublasStatus_t InitLayout(cublasLtMatrixLayoutOpaque_t* layout,
                                   cudaDataType_t type, int64_t rows,
                                   int64_t columns, int64_t ld, int64_t batch,
                                   int64_t stride) {
    JCB_RETURN_IF_CUBLAS_ERROR(
        cublasLtMatrixLayoutInit(layout, type, columns, rows, ld));
    const int32_t count = static_cast<int32_t>(batch);
    JCB_RETURN_IF_CUBLAS_ERROR(cublasLtMatrixLayoutSetAttribute(
        layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)));
    return cublasLtMatrixLayoutSetAttribute(
        layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
        sizeof(stride));
  }
};

struct Preference {
  cublasLtMatmulPreferenceOpaque_t opaque;

  cublasStatus_t Init(const Gemm& gemm) {
    JCB_RETURN_IF_CUBLAS_ERROR(cublasLtMatmulPreferenceInit(&opaque));
    JCB_RETURN_IF_CUBLAS_ERROR(Set<uint64_t>(
        CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, gemm.workspace));
    // Of the schemes only this one adds in the type of the sums, in order.
    JCB_RETURN_IF_CUBLAS_ERROR(Set<uint32_t>(
        CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        gemm.workspace > 0 ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
                           : CUBLASLT_REDUCTION_SCHEME_NONE));
    JCB_RETURN_IF_CUBLAS_ERROR(Set<uint32_t>(
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, gemm.align_b));
    JCB_RETURN_IF_CUBLAS_ERROR(Set<uint32_t>(
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, gemm.align_a));
    JCB_RETURN_IF_CUBLAS_ERROR(Set<uint32_t>(
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, gemm.align_d));
    return Set<uint32_t>(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
                         gemm.align_d);
  }

 private:
  template <typename T>
  cublasStatus_t Set(cublasLtMatmulPreferenceAttributes_t which, T value) {
    return cublasLtMatmulPreferenceSetAttribute(&opaque, which, &value,
                                                sizeof(value));
  }
};

cublasStatus_t AskHeuristic(cublasLtHandle_t handle, const Gemm& canonical,
                            const Gemm& smallest,
                            cublasLtMatmulAlgo_t* algorithm) {
  Descriptors large, small;
  Preference preference;
  JCB_RETURN_IF_CUBLAS_ERROR(
      large.Init(canonical, std::min(canonical.batch, kMaxBatch)));
  JCB_RETURN_IF_CUBLAS_ERROR(
      small.Init(smallest, std::min(smallest.batch, kMaxBatch)));
  JCB_RETURN_IF_CUBLAS_ERROR(preference.Init(canonical));

  std::array<cublasLtMatmulHeuristicResult_t, kCandidates> results;
  int count = 0;
  JCB_RETURN_IF_CUBLAS_ERROR(cublasLtMatmulAlgoGetHeuristic(
      handle, &large.product, &large.b, &large.a, &large.d, &large.d,
      &preference.opaque, kCandidates, results.data(), &count));
  // What cublasLtMatmulAlgoCheck counts is more than what a product must have:
  // for large matrices it names 4 bytes, for every algorithm that the heuristic
  // gave under a limit of 0 and that runs without. So an algorithm may count
  // for the smallest product what it counts for the canonical one; one that
  // counts nothing goes before it.
  const auto counted = [&](Descriptors& d, const cublasLtMatmulAlgo_t& algo) {
    cublasLtMatmulHeuristicResult_t check;
    const cublasStatus_t status = cublasLtMatmulAlgoCheck(
        handle, &d.product, &d.b, &d.a, &d.d, &d.d, &algo, &check);
    return status == CUBLAS_STATUS_SUCCESS
               ? static_cast<int64_t>(check.workspaceSize)
               : int64_t{-1};
  };
  const cublasLtMatmulAlgo_t* fallback = nullptr;
  for (int i = 0; i < count; ++i) {
    const cublasLtMatmulAlgo_t& algo = results[i].algo;
    if (results[i].state != CUBLAS_STATUS_SUCCESS) continue;
    if (canonical.workspace > 0) {
      *algorithm = algo;
      return CUBLAS_STATUS_SUCCESS;
    }
    const int64_t bytes = counted(small, algo);
    if (bytes == 0) {
      *algorithm = algo;
      return CUBLAS_STATUS_SUCCESS;
    }
    if (fallback == nullptr && bytes > 0 && bytes <= counted(large, algo)) {
      fallback = &algo;
    }
  }
  if (fallback == nullptr) return CUBLAS_STATUS_NOT_SUPPORTED;
  *algorithm = *fallback;
  return CUBLAS_STATUS_SUCCESS;
}

using Key = std::array<int64_t, 20>;

Key MakeKey(int device, const Gemm& g) {
  return {device,        g.operand_type, g.result_type, g.compute_type,
          g.transpose_a, g.transpose_b,  g.m,           g.n,
          g.k,           g.lda,          g.ldb,         g.ldd,
          g.batch,       g.stride_a,     g.stride_b,    g.stride_d,
          g.align_a,     g.align_b,      g.align_d,     g.workspace};
}

// What the process has created so far. Never destroyed: the CUDA driver may be
// gone before static destructors run.
struct Cache {
  std::mutex mutex;
  std::map<int, cublasLtHandle_t> handles;
  std::map<Key, GemmAlgorithm> algorithms;
};

Cache& GetCache() {
  static Cache* const cache = new Cache;
  return *cache;
}

}  // namespace

cublasStatus_t FindAlgorithm(const Gemm& canonical, const Gemm& smallest,
                             GemmAlgorithm* found) {
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) {
    return CUBLAS_STATUS_NOT_INITIALIZED;
  }
  const Key key = MakeKey(device, canonical);
  Cache& cache = GetCache();
  const std::lock_guard<std::mutex> lock(cache.mutex);
  if (const auto it = cache.algorithms.find(key);
      it != cache.algorithms.end()) {
    *found = it->second;
    return CUBLAS_STATUS_SUCCESS;
  }
  auto handle = cache.handles.find(device);
  if (handle == cache.handles.end()) {
    cublasLtHandle_t created;
    JCB_RETURN_IF_CUBLAS_ERROR(cublasLtCreate(&created));
    handle = cache.handles.emplace(device, created).first;
  }
  found->handle = handle->second;
  JCB_RETURN_IF_CUBLAS_ERROR(
      AskHeuristic(found->handle, canonical, smallest, &found->algorithm));
  cache.algorithms.emplace(key, *found);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t RunGemm(cudaStream_t stream, const GemmAlgorithm& algorithm,
                       const Gemm& gemm, const void* a, const void* b, void* d,
                       void* workspace) {
  const double one_f64 = 1, zero_f64 = 0;
  const float one_f32 = 1, zero_f32 = 0;
  const bool is_f64 = gemm.compute_type == CUBLAS_COMPUTE_64F;
  const void* alpha = is_f64 ? static_cast<const void*>(&one_f64) : &one_f32;
  const void* beta = is_f64 ? static_cast<const void*>(&zero_f64) : &zero_f32;
  const int64_t operand_bytes = BytesOf(gemm.operand_type);
  const int64_t result_bytes = BytesOf(gemm.result_type);

  for (int64_t first = 0; first < gemm.batch; first += kMaxBatch) {
    Descriptors descriptors;
    JCB_RETURN_IF_CUBLAS_ERROR(
        descriptors.Init(gemm, std::min(kMaxBatch, gemm.batch - first)));
    const int64_t a_offset = first * gemm.stride_a * operand_bytes;
    const int64_t b_offset = first * gemm.stride_b * operand_bytes;
    const int64_t d_offset = first * gemm.stride_d * result_bytes;
    void* result = static_cast<char*>(d) + d_offset;
    JCB_RETURN_IF_CUBLAS_ERROR(cublasLtMatmul(
        algorithm.handle, &descriptors.product, alpha,
        static_cast<const char*>(b) + b_offset, &descriptors.b,
        static_cast<const char*>(a) + a_offset, &descriptors.a, beta, result,
        &descriptors.d, result, &descriptors.d, &algorithm.algorithm, workspace,
        gemm.workspace, stream));
  }
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace jax_convbatch
