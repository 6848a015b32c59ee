// SPDX-License-Identifier: Apache-2.0
// The matrix products of a convolution over unrolled samples.
#pragma once

#include <cstdint>

#include "conv_geometry.h"
#include "cuda/common/conv_call.h"
#include "cuda/cublas/cublas.h"
#include "xla/ffi/api/ffi.h"

namespace jax_convbatch {

// How products of one dtype are computed.
struct Arithmetic {
  cudaDataType_t operand, accumulator;
  cublasComputeType_t compute;
  int64_t operand_bytes, accumulator_bytes;
};

// `precision` is jax.lax.Precision: 0 DEFAULT, 1 HIGH, 2 HIGHEST.
Arithmetic ArithmeticOf(xla::ffi::DataType dtype, int64_t precision);

cudaDataType_t CublasType(xla::ffi::DataType dtype);

// The columns of `samples` samples: element (group, sample, pixel, i) is at
// group * group_stride + sample * sample_stride + pixel * ld + i.
struct Columns {
  Columns(const ConvGeometry& g, int64_t samples);

  int64_t ld, sample_stride, group_stride;
};

// Whether wgrad's products run over the samples, once for each group, or over
// the groups, once for each sample: whichever is fewer. Depends on the whole
// batch, not on the slice, so that slicing does not change bits.
inline bool WgradRunsOverSamples(const ConvGeometry& g) {
  return g.groups <= g.N;
}

// What is multiplied, but for the number of samples.
struct Products {
  Operation operation;
  Arithmetic arithmetic;
  cudaDataType_t result_type;  // what the products are written in
  // Whether the samples of one group lie below each other in one tall matrix,
  // or are a batch in which w has stride 0.
  bool tall;
};

// The product to run for `samples` samples:
//   fprop   y = columns * w            dgrad   columns = dy * w^T
//   wgrad   partials = columns^T * dy, of one group or of one sample
// With several groups the batch of fprop and dgrad is the groups, and a group's
// samples are one tall matrix.
Gemm ConvGemm(const Products& products, const ConvGeometry& g, int64_t samples);

// The algorithm for every ConvGemm of this geometry, whatever its samples.
cublasStatus_t FindConvAlgorithm(const Products& products,
                                 const ConvGeometry& g, GemmAlgorithm* found);

// The most samples that one product may have: cuBLAS counts rows in 32 bits.
int64_t MaxSamples(const ConvGeometry& g);

}  // namespace jax_convbatch
