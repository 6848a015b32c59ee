// SPDX-License-Identifier: Apache-2.0
#include "cuda/cublas/product_wgrad.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "cuda/common/left_out.h"
#include "cuda/cublas/cublas.h"
#include "cuda/sm90/epilogue/split_k_sum.h"

namespace jax_convbatch {

namespace {

// For the parts of split sums: twice what cuBLAS takes for the layers that the
// rule below was made from.
constexpr int64_t kSplitBytes = int64_t{16} << 20;

// Into how many products of as many pixels a long sum is cut: as many as make
// one wave of their tiles, which are 64 x 128, or 128 x 128 where there are
// many of them and of pixels. 1 where the pixels cannot be divided so that
// nearly all SMs have a tile.
int64_t Splits(int64_t small_tiles, int64_t pixels, int multiprocessors) {
  const bool large = small_tiles >= 32 && pixels > 32768;
  const int64_t tiles = large ? small_tiles / 2 : small_tiles;
  int64_t splits = std::max<int64_t>(1, multiprocessors / tiles);
  while (pixels % splits != 0) --splits;
  return splits * tiles * 10 >= multiprocessors * 9 ? splits : 1;
}

}  // namespace

std::optional<ProductWgrad> PlanProductWgrad(const ConvGeometry& g,
                                             hopper::Type type,
                                             int multiprocessors) {
  const int64_t pixels = g.N * g.output_pixels();
  if (IsLeftOut(Family::kProductWgrad) || type == hopper::Type::kTf32 ||
      g.groups != 1 || !g.is_pointwise() || g.C % 8 != 0 || g.K % 8 != 0 ||
      pixels == 0 || 1.0 * pixels > std::numeric_limits<int32_t>::max()) {
    return std::nullopt;
  }
  // From times of 17 layers at batches 8 to 256 on an H200. cuBLAS, which does
  // not walk images, is ahead where 64 x 128 tiles are one wave (as many as
  // there are SMs, or a tenth less), where many tiles have short sums and it
  // splits none, and where there is so much to do that a second launch for
  // split sums does not show. Tiles that hold all of a small dw, and clusters
  // that add up few of them, are ahead of its split sums, and of its short ones
  // where its tiles or the pixels are few.
  const int64_t tiles = g.C * g.K / (64 * 128);
  const bool one_wave =
      tiles <= multiprocessors && tiles * 10 >= multiprocessors * 9;
  constexpr int64_t kFewTiles = 32, kFewPixels = 392;
  const double work = 1.0 * pixels * static_cast<double>(g.C * g.K);
  const bool short_sums = pixels <= 98 * tiles;
  if (g.C % 64 != 0 || g.K % 64 != 0) {
    // Tiles are not full. Where each has few pixels they are ahead all the
    // same.
    constexpr int64_t kManyPixels = 1000;
    constexpr double kEnough = 0.9e9;
    const bool is_long = pixels >= kManyPixels * tiles && work >= kEnough;
    const bool is_wide = std::min(g.C, g.K) >= 64 && std::max(g.C, g.K) >= 224;
    if (!is_long || !is_wide) return std::nullopt;
    return ProductWgrad{1, kSplitBytes};
  }
  if (short_sums && tiles <= kFewTiles) return std::nullopt;
  if (one_wave && pixels <= kFewPixels) return std::nullopt;
  if (one_wave || short_sums) return ProductWgrad{1, 0};
  constexpr double kMuch = 1.6e9;
  const bool much = tiles >= 2 && std::max(g.C, g.K) >= 256 && work >= kMuch;
  if (tiles < 32 && !much) return std::nullopt;
  // Where there is not much more than that cuBLAS cuts as well itself.
  const int64_t splits = tiles >= 32 || work >= 2 * kMuch
                             ? Splits(tiles, pixels, multiprocessors)
                             : 1;
  // Many tiles that no cut makes one wave of: 8x32x32 640->640 takes tiles 19
  // us, cuBLAS 23 (H200).
  if (tiles >= 32 && splits == 1) return std::nullopt;
  if (splits == 1) return ProductWgrad{1, kSplitBytes};
  return ProductWgrad{splits, splits * g.C * g.K * int64_t{sizeof(float)}};
}

cublasStatus_t RunProductWgrad(const ConvGeometry& g, hopper::Type type,
                               const ProductWgrad& plan, Stage stage,
                               cudaStream_t stream, const void* x,
                               const void* dy, void* dw, void* workspace) {
  const bool adds = plan.splits > 1;
  Gemm gemm{};
  gemm.operand_type = type == hopper::Type::kBf16 ? CUDA_R_16BF : CUDA_R_16F;
  gemm.result_type = adds ? CUDA_R_32F : gemm.operand_type;
  gemm.compute_type = CUBLAS_COMPUTE_32F;
  gemm.transpose_a = true;
  gemm.m = gemm.lda = g.C;
  gemm.n = gemm.ldb = gemm.ldd = g.K;
  gemm.k = g.N * g.output_pixels() / plan.splits;
  gemm.batch = plan.splits;
  gemm.stride_a = gemm.k * g.C;
  gemm.stride_b = gemm.k * g.K;
  gemm.stride_d = g.C * g.K;
  gemm.align_a = gemm.align_b = gemm.align_d = 16;
  gemm.workspace = adds ? 0 : plan.workspace;
  GemmAlgorithm algorithm;
  cublasStatus_t status = FindAlgorithm(gemm, gemm, &algorithm);
  if (status == CUBLAS_STATUS_SUCCESS && stage == Stage::kLaunch) {
    status = RunGemm(stream, algorithm, gemm, x, dy, adds ? workspace : dw,
                     adds ? nullptr : workspace);
  }
  if (status != CUBLAS_STATUS_SUCCESS || !adds) return status;
  return hopper::SplitKSum(type, plan.splits, gemm.stride_d, workspace, dw,
                           stage, stream) == cudaSuccess
             ? CUBLAS_STATUS_SUCCESS
             : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // namespace jax_convbatch
