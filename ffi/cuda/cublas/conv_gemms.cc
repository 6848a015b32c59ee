// SPDX-License-Identifier: Apache-2.0
#include "cuda/cublas/conv_gemms.h"

#include <algorithm>
#include <initializer_list>
#include <limits>

namespace jax_convbatch {
namespace {

// The sample count that the algorithms of fprop and dgrad are chosen for. Of 1,
// 8, 16, 32 and 128, timed on an H200 with batches of 1 to 64, 16 lost least
// where it was not the best: more samples bring tiles that leave a small batch
// on few SMs.
constexpr int64_t kCanonicalSamples = 16;

// XLA aligns buffers to at least this, and no load is wider.
constexpr int64_t kBufferAlignment = 16;

// The largest power of two, up to the buffers' own alignment, that divides all
// of these distances in bytes.
int64_t Alignment(std::initializer_list<int64_t> distances) {
  int64_t alignment = kBufferAlignment;
  for (const int64_t distance : distances) {
    while (distance % alignment != 0) alignment /= 2;
  }
  return alignment;
}

}  // namespace

cudaDataType_t CublasType(xla::ffi::DataType dtype) {
  switch (dtype) {
    case xla::ffi::F64:
      return CUDA_R_64F;
    case xla::ffi::F16:
      return CUDA_R_16F;
    case xla::ffi::BF16:
      return CUDA_R_16BF;
    default:
      return CUDA_R_32F;
  }
}

Arithmetic ArithmeticOf(xla::ffi::DataType dtype, int64_t precision) {
  const cudaDataType_t type = CublasType(dtype);
  switch (dtype) {
    case xla::ffi::F64:
      return {type, CUDA_R_64F, CUBLAS_COMPUTE_64F, 8, 8};
    case xla::ffi::F32:
      // HIGH promises three TF32 products or better; cuBLAS offers no such
      // mode, and true f32 is better.
      return {
          type, CUDA_R_32F,
          precision == 0 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, 4,
          4};
    default:
      return {type, CUDA_R_32F, CUBLAS_COMPUTE_32F, 2, 4};
  }
}

Columns::Columns(const ConvGeometry& g, int64_t samples) {
  if (g.is_pointwise()) {
    ld = g.C;
    sample_stride = g.output_pixels() * g.C;
    group_stride = g.group_C();
  } else {
    ld = g.column_size();
    sample_stride = g.output_pixels() * g.column_size();
    group_stride = samples * sample_stride;
  }
}

Gemm ConvGemm(const Products& products, const ConvGeometry& g,
              int64_t samples) {
  const auto& [operation, arithmetic, result_type, tall] = products;
  const Columns columns(g, samples);
  const Columns one_sample(g, 1);
  const int64_t y_stride = g.output_pixels() * g.K;
  // What separates the groups of y, w and the partials; 0 if there is only one.
  const int64_t group = g.groups > 1 ? g.group_K() : 0;
  const int64_t in = arithmetic.operand_bytes;
  const int64_t acc = arithmetic.accumulator_bytes;
  const int64_t out = result_type == arithmetic.operand ? in : acc;
  const int64_t columns_bytes = operation == Operation::kDgrad ? out : in;
  const int64_t y_bytes = operation == Operation::kFprop ? out : in;

  const int64_t align_columns =
      Alignment({one_sample.sample_stride * columns_bytes,
                 g.groups > 1 ? one_sample.group_stride * columns_bytes : 0});
  const int64_t align_y = Alignment({y_stride * y_bytes, group * y_bytes});
  const int64_t align_w = Alignment({group * in});

  Gemm gemm{};
  gemm.operand_type = arithmetic.operand;
  gemm.result_type = result_type;
  gemm.compute_type = arithmetic.compute;
  if (operation == Operation::kWgrad) {
    gemm.transpose_a = true;
    gemm.m = g.column_size();
    gemm.n = g.group_K();
    gemm.k = g.output_pixels();
    gemm.lda = columns.ld;
    gemm.ldb = gemm.ldd = g.K;
    if (WgradRunsOverSamples(g)) {
      gemm.batch = samples;
      gemm.stride_a = columns.sample_stride;
      gemm.stride_b = y_stride;
      gemm.stride_d = g.w_size();
    } else {
      gemm.batch = g.groups;
      gemm.stride_a = columns.group_stride;
      gemm.stride_b = gemm.stride_d = group;
    }
    gemm.align_a = align_columns;
    gemm.align_b = align_y;
    gemm.align_d = Alignment({g.w_size() * acc, group * acc});
    return gemm;
  }

  const bool fprop = operation == Operation::kFprop;
  int64_t columns_stride, y_batch_stride;
  if (g.groups == 1 && !tall) {
    gemm.batch = samples;
    gemm.m = g.output_pixels();
    columns_stride = columns.sample_stride;
    y_batch_stride = y_stride;
  } else {
    gemm.batch = g.groups;
    gemm.m = samples * g.output_pixels();
    columns_stride = columns.group_stride;
    y_batch_stride = group;
  }
  gemm.transpose_b = !fprop;
  gemm.n = fprop ? g.group_K() : g.column_size();
  gemm.k = fprop ? g.column_size() : g.group_K();
  gemm.lda = fprop ? columns.ld : g.K;
  gemm.ldb = g.K;
  gemm.ldd = fprop ? g.K : columns.ld;
  gemm.stride_a = fprop ? columns_stride : y_batch_stride;
  gemm.stride_b = group;
  gemm.stride_d = fprop ? y_batch_stride : columns_stride;
  gemm.align_a = fprop ? align_columns : align_y;
  gemm.align_b = align_w;
  gemm.align_d = fprop ? align_y : align_columns;
  return gemm;
}

cublasStatus_t FindConvAlgorithm(const Products& products,
                                 const ConvGeometry& g, GemmAlgorithm* found) {
  // dw depends on the whole batch, so its algorithm may too; y and dx of a
  // sample must not.
  const bool wgrad = products.operation == Operation::kWgrad;
  const int64_t canonical =
      std::min(wgrad ? g.N : kCanonicalSamples, MaxSamples(g));
  return FindAlgorithm(ConvGemm(products, g, canonical),
                       ConvGemm(products, g, 1), found);
}

int64_t MaxSamples(const ConvGeometry& g) {
  constexpr int64_t kMaxRows = std::numeric_limits<int32_t>::max();
  return std::max<int64_t>(1,
                           kMaxRows / std::max<int64_t>(1, g.output_pixels()));
}

}  // namespace jax_convbatch
