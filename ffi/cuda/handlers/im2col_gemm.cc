// SPDX-License-Identifier: Apache-2.0
// Convolution by unrolling samples into columns and one strided-batched matrix
// product over them. The batch is cut into slices that fit the workspace; the
// bits of the result do not depend on where. With slices of one sample this is
// the engine per_sample.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "conv_geometry.h"
#include "cuda/common/conv_call.h"
#include "cuda/common/dtypes.h"
#include "cuda/common/status.h"
#include "cuda/cublas/column_gemms.h"
#include "cuda/cublas/conv_gemms.h"
#include "cuda/cublas/im2col.h"
#include "cuda/handlers/handlers.h"
#include "ffi_checks.h"

namespace jax_convbatch {
namespace {

// One call of a handler.
struct Call {
  Operation operation;
  ffi::AnyBuffer lhs, rhs, result, workspace;
  const ConvGeometry& g;
  int64_t slice;
  Arithmetic arithmetic;

  Call(Operation operation, ffi::AnyBuffer lhs, ffi::AnyBuffer rhs,
       ffi::AnyBuffer result, ffi::AnyBuffer workspace, const ConvGeometry& g,
       int64_t slice, int64_t precision)
      : operation(operation),
        lhs(lhs),
        rhs(rhs),
        result(result),
        workspace(workspace),
        g(g),
        slice(std::clamp<int64_t>(slice, 1, MaxSamples(g))),
        arithmetic(ArithmeticOf(lhs.element_type(), precision)) {}

  const char* name() const { return Name(operation); }
  ffi::DataType dtype() const { return lhs.element_type(); }
  int64_t column_count() const {
    return slice * g.output_pixels() * g.taps() * g.C;
  }

  template <typename Status>
  ffi::Error Check(Status status) const {
    return ToError(status, [&] { return Describe(name(), g); });
  }

  bool ResultIsEmpty() const { return result.element_count() == 0; }

  // Whether the result is a sum of no terms.
  bool SumIsEmpty() const {
    switch (operation) {
      case Operation::kFprop:
        return g.column_size() == 0;
      case Operation::kDgrad:
        return g.K == 0 || g.taps() == 0 || g.output_pixels() == 0;
      default:
        return g.N == 0 || g.output_pixels() == 0;
    }
  }

  // The type that the products are written in.
  cudaDataType_t gemm_result() const {
    switch (operation) {
      case Operation::kFprop:
        return CublasType(result.element_type());
      case Operation::kDgrad:
        return g.is_pointwise() ? arithmetic.operand : arithmetic.accumulator;
      default:
        return arithmetic.accumulator;
    }
  }

  ColumnGemms gemms() const {
    return ColumnGemms({operation, arithmetic, gemm_result(), /*tall=*/false},
                       g);
  }
};

ffi::Error CheckCall(const Call& call) {
  JCB_RETURN_IF_ERROR(
      CheckBuffers(call.operation, call.g,
                   {call.lhs, call.rhs, call.result, call.workspace}));
  const ffi::DataType result = call.result.element_type();
  const bool widened = call.operation == Operation::kFprop &&
                       result == ffi::F32 && call.dtype() != ffi::F64;
  if (!SupportedDtype(call.dtype()) ||
      call.rhs.element_type() != call.dtype() ||
      (result != call.dtype() && !widened)) {
    return UnsupportedDtypes(call.operation, call.g);
  }
  return ffi::Error::Success();
}

ffi::Error Fprop(cudaStream_t stream, const Call& call,
                 const ColumnGemms& gemms) {
  const ConvGeometry& g = call.g;
  const int64_t bytes = call.arithmetic.operand_bytes;
  const int64_t x_stride = g.input_pixels() * g.C * bytes;
  const int64_t y_stride =
      g.output_pixels() * g.K * ffi::ByteWidth(call.result.element_type());
  Workspace workspace(call.workspace);
  char* cols = g.is_pointwise()
                   ? nullptr
                   : workspace.Take<char>(call.column_count() * bytes);
  JCB_RETURN_IF_ERROR(workspace.Check(call.name(), g));

  return ForEachSlice(g, call.slice, [&](int64_t n, int64_t samples) {
    const char* x = At(call.lhs.untyped_data(), n * x_stride);
    if (cols != nullptr) {
      JCB_RETURN_IF_ERROR(
          call.Check(Im2Col(stream, g, samples, bytes, x, cols)));
    }
    return gemms.Run(stream, samples, cols != nullptr ? cols : x,
                     call.rhs.untyped_data(),
                     At(call.result.untyped_data(), n * y_stride));
  });
}

ffi::Error Dgrad(cudaStream_t stream, const Call& call,
                 const ColumnGemms& gemms) {
  const ConvGeometry& g = call.g;
  const int64_t bytes = call.arithmetic.operand_bytes;
  const int64_t dx_stride = g.input_pixels() * g.C * bytes;
  const int64_t dy_stride = g.output_pixels() * g.K * bytes;
  Workspace workspace(call.workspace);
  char* dcols = g.is_pointwise()
                    ? nullptr
                    : workspace.Take<char>(call.column_count() *
                                           call.arithmetic.accumulator_bytes);
  JCB_RETURN_IF_ERROR(workspace.Check(call.name(), g));

  return ForEachSlice(g, call.slice, [&](int64_t n, int64_t samples) {
    char* dx = At(call.result.untyped_data(), n * dx_stride);
    JCB_RETURN_IF_ERROR(
        gemms.Run(stream, samples, At(call.lhs.untyped_data(), n * dy_stride),
                  call.rhs.untyped_data(), dcols != nullptr ? dcols : dx));
    if (dcols == nullptr) return ffi::Error::Success();
    return call.Check(Col2Im(stream, g, samples, call.dtype(), dcols, dx));
  });
}

ffi::Error Wgrad(cudaStream_t stream, const Call& call,
                 const ColumnGemms& gemms) {
  const ConvGeometry& g = call.g;
  const int64_t bytes = call.arithmetic.operand_bytes;
  const int64_t x_stride = g.input_pixels() * g.C * bytes;
  const int64_t dy_stride = g.output_pixels() * g.K * bytes;
  Workspace workspace(call.workspace);
  char* cols = g.is_pointwise()
                   ? nullptr
                   : workspace.Take<char>(call.column_count() * bytes);
  const ColumnGemms::WgradSpace space(g, call.slice, call.arithmetic,
                                      workspace);
  JCB_RETURN_IF_ERROR(workspace.Check(call.name(), g));

  return ForEachSlice(g, call.slice, [&](int64_t n, int64_t samples) {
    const char* x = At(call.lhs.untyped_data(), n * x_stride);
    if (cols != nullptr) {
      JCB_RETURN_IF_ERROR(
          call.Check(Im2Col(stream, g, samples, bytes, x, cols)));
    }
    return gemms.Wgrad(stream, n, samples, call.dtype(),
                       cols != nullptr ? cols : x,
                       At(call.rhs.untyped_data(), n * dy_stride), space,
                       call.result.untyped_data());
  });
}

template <Operation operation>
ffi::Error Execute(cudaStream_t stream, ffi::AnyBuffer lhs, ffi::AnyBuffer rhs,
                   ffi::Result<ffi::AnyBuffer> result,
                   ffi::Result<ffi::AnyBuffer> workspace, const ConvGeometry& g,
                   int64_t slice, int64_t precision) {
  const Call call(operation, lhs, rhs, *result, *workspace, g, slice,
                  precision);
  JCB_RETURN_IF_ERROR(CheckCall(call));
  if (call.ResultIsEmpty()) return ffi::Error::Success();
  if (call.SumIsEmpty()) {
    return call.Check(cudaMemsetAsync(result->untyped_data(), 0,
                                      result->size_bytes(), stream));
  }
  ColumnGemms gemms = call.gemms();
  JCB_RETURN_IF_ERROR(gemms.FindAlgorithm());
  switch (operation) {
    case Operation::kFprop:
      return Fprop(stream, call, gemms);
    case Operation::kDgrad:
      return Dgrad(stream, call, gemms);
    default:
      return Wgrad(stream, call, gemms);
  }
}

// Runs before the first Execute, outside any capture, so that Execute finds
// cuBLAS's handle and the algorithm already there.
template <Operation operation>
ffi::Error Initialize(ffi::AnyBuffer lhs, ffi::AnyBuffer rhs,
                      ffi::Result<ffi::AnyBuffer> result,
                      ffi::Result<ffi::AnyBuffer> workspace,
                      const ConvGeometry& g, int64_t slice, int64_t precision) {
  const Call call(operation, lhs, rhs, *result, *workspace, g, slice,
                  precision);
  JCB_RETURN_IF_ERROR(CheckCall(call));
  if (call.ResultIsEmpty() || call.SumIsEmpty()) return ffi::Error::Success();
  return call.gemms().FindAlgorithm();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(CudaFpropExecute, Execute<Operation::kFprop>,
                              BindConvExecute(),
                              {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER_SYMBOL(CudaDgradExecute, Execute<Operation::kDgrad>,
                              BindConvExecute(),
                              {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER_SYMBOL(CudaWgradExecute, Execute<Operation::kWgrad>,
                              BindConvExecute(),
                              {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER_SYMBOL(CudaFpropInitialize,
                              Initialize<Operation::kFprop>,
                              BindConvInitialize());
XLA_FFI_DEFINE_HANDLER_SYMBOL(CudaDgradInitialize,
                              Initialize<Operation::kDgrad>,
                              BindConvInitialize());
XLA_FFI_DEFINE_HANDLER_SYMBOL(CudaWgradInitialize,
                              Initialize<Operation::kWgrad>,
                              BindConvInitialize());

}  // namespace jax_convbatch
