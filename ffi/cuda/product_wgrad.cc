#include "cuda/product_wgrad.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "cuda/cublas.h"

namespace jax_convbatch {

namespace {

// For the parts of split sums: twice what cuBLAS takes for the layers that the
// rule below was made from.
constexpr int64_t kSplitBytes = int64_t{16} << 20;

}  // namespace

std::optional<int64_t> ProductWgradWorkspace(const ConvGeometry& g,
                                             hopper::Type type,
                                             int multiprocessors) {
  const int64_t pixels = g.N * g.output_pixels();
  if (type == hopper::Type::kTf32 || g.groups != 1 || !g.is_pointwise() ||
      g.C % 64 != 0 || g.K % 64 != 0 || pixels == 0 ||
      1.0 * pixels > std::numeric_limits<int32_t>::max()) {
    return std::nullopt;
  }
  // From times of 17 layers at batches 8 to 256 on an H200. cuBLAS, which does
  // not walk images, is ahead where 64 x 128 tiles are one wave (as many as
  // there are multiprocessors, or a tenth less), where its tiles have short
  // sums and it splits none, and where there is so much to do that a second
  // launch for split sums does not show. Tiles that hold all of a small dw, and
  // clusters that add up few of them, are ahead of its split sums.
  const int64_t tiles = g.C * g.K / (64 * 128);
  const bool one_wave =
      tiles <= multiprocessors && tiles * 10 >= multiprocessors * 9;
  const bool short_sums = tiles >= 8 && pixels <= 98 * tiles;
  if (one_wave || short_sums) return 0;
  constexpr double kMuch = 1.6e9;
  const bool much = tiles >= 2 && std::max(g.C, g.K) >= 256 &&
                    1.0 * pixels * static_cast<double>(g.C * g.K) >= kMuch;
  if (tiles >= 32 || much) return kSplitBytes;
  return std::nullopt;
}

cublasStatus_t RunProductWgrad(const ConvGeometry& g, hopper::Type type,
                               int64_t workspace_bytes, Stage stage,
                               cudaStream_t stream, const void* x,
                               const void* dy, void* dw, void* workspace) {
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
  gemm.workspace = workspace_bytes;
  GemmAlgorithm algorithm;
  const cublasStatus_t found = FindAlgorithm(gemm, gemm, &algorithm);
  if (found != CUBLAS_STATUS_SUCCESS || stage == Stage::kPrepare) {
    return found;
  }
  return RunGemm(stream, algorithm, gemm, x, dy, dw, workspace);
}

}  // namespace jax_convbatch
