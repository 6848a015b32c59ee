#include "cuda/product_wgrad.h"

#include <cstdint>
#include <limits>

#include "cuda/cublas.h"

namespace jax_convbatch {

bool IsProductWgrad(const ConvGeometry& g, hopper::Type type,
                    int multiprocessors) {
  if (type == hopper::Type::kTf32 || g.groups != 1 || !g.is_pointwise() ||
      g.C % 64 != 0 || g.K % 64 != 0 ||
      1.0 * g.N * g.output_pixels() > std::numeric_limits<int32_t>::max() ||
      g.N * g.output_pixels() == 0) {
    return false;
  }
  // As many as there are multiprocessors, or a tenth less.
  const auto one_wave = [&](int64_t tiles) {
    return tiles <= multiprocessors && tiles * 10 >= multiprocessors * 9;
  };
  return one_wave(g.C / 64 * (g.K / 64) / 2);
}

cublasStatus_t RunProductWgrad(const ConvGeometry& g, hopper::Type type,
                               hopper::Stage stage, cudaStream_t stream,
                               const void* x, const void* dy, void* dw) {
  Gemm gemm{};
  gemm.operand_type = gemm.result_type =
      type == hopper::Type::kBf16 ? CUDA_R_16BF : CUDA_R_16F;
  gemm.compute_type = CUBLAS_COMPUTE_32F;
  gemm.transpose_a = true;
  gemm.m = gemm.lda = g.C;
  gemm.n = gemm.ldb = gemm.ldd = g.K;
  gemm.k = g.N * g.output_pixels();
  gemm.batch = 1;
  gemm.align_a = gemm.align_b = gemm.align_d = 16;
  GemmAlgorithm algorithm;
  const cublasStatus_t found = FindAlgorithm(gemm, gemm, &algorithm);
  if (found != CUBLAS_STATUS_SUCCESS || stage == hopper::Stage::kPrepare) {
    return found;
  }
  return RunGemm(stream, algorithm, gemm, x, dy, dw);
}

}  // namespace jax_convbatch
