// Deformable convolution as matrix products over sampled columns, in slices of
// the batch. The products are im2col_gemm's, and so is what the bits do not
// depend on.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>

#include "conv_geometry.h"
#include "cuda/column_gemms.h"
#include "cuda/conv_call.h"
#include "cuda/conv_gemms.h"
#include "cuda/dtypes.h"
#include "cuda/handlers.h"
#include "cuda/sampling.h"
#include "cuda/status.h"
#include "deform_call.h"
#include "ffi_checks.h"

namespace jax_convbatch {
namespace {

// What the three operations derive from their attributes.
struct Call {
  Operation operation;
  const ConvGeometry& g;
  int64_t offset_groups;
  ffi::DataType dtype;
  Arithmetic arithmetic;
  int64_t slice;

  Call(Operation operation, const ConvGeometry& g, const DeformOptions& o,
       ffi::DataType dtype)
      : operation(operation),
        g(g),
        offset_groups(o.offset_groups),
        dtype(dtype),
        arithmetic(ArithmeticOf(dtype, o.precision)),
        slice(std::clamp<int64_t>(
            o.slice, 1,
            std::min({g.N, MaxSamples(g), MaxSampled(g, offset_groups)}))) {}

  int64_t x_bytes() const {
    return g.input_pixels() * g.C * arithmetic.operand_bytes;
  }
  int64_t y_bytes() const {
    return g.output_pixels() * g.K * arithmetic.operand_bytes;
  }
  int64_t column_count() const {
    return slice * g.output_pixels() * g.taps() * g.C;
  }
  int64_t entries(int64_t samples) const {
    return Entries(g, offset_groups, samples);
  }
  int64_t corner_bytes(int64_t samples) const {
    return 4 * entries(samples) * arithmetic.accumulator_bytes;
  }

  ColumnGemms gemms() const {
    return ColumnGemms(operation, g, arithmetic,
                       operation == Operation::kFprop ? arithmetic.operand
                                                      : arithmetic.accumulator);
  }
  Sampling AtSample(const ffi::AnyBuffer& cells, const ffi::AnyBuffer& corners,
                    int64_t n) const {
    return {static_cast<const int32_t*>(cells.untyped_data()) + entries(n),
            At(corners.untyped_data(), corner_bytes(n)), offset_groups};
  }
  ffi::Error Check(cudaError_t status) const {
    return ToError(status, [&] { return Describe(Name(operation), g); });
  }
};

// After the shared checks.
ffi::Error CheckCall(Operation operation, const ConvGeometry& g,
                     const DeformOptions& o, ffi::DataType dtype,
                     std::initializer_list<ffi::AnyBuffer> buffers) {
  if (!SupportedDtype(dtype)) return UnsupportedDtypes(operation, g);
  if (MaxSampled(g, o.offset_groups) < 1) {
    return ffi::Error::InvalidArgument(
        "jax_convbatch: too many positions in a sample: " +
        Describe(Name(operation), g));
  }
  for (const ffi::AnyBuffer& buffer : buffers) {
    if (reinterpret_cast<uintptr_t>(buffer.untyped_data()) % 16 != 0) {
      return ffi::Error::Internal(
          "jax_convbatch: a buffer is not aligned to 16 bytes in " +
          Describe(Name(operation), g));
    }
  }
  return ffi::Error::Success();
}

ffi::Error FpropImpl(cudaStream_t stream, ffi::AnyBuffer x,
                     ffi::AnyBuffer cells, ffi::AnyBuffer corners,
                     ffi::AnyBuffer w, ffi::Result<ffi::AnyBuffer> y,
                     ffi::Result<ffi::AnyBuffer> workspace, ConvGeometry g,
                     int64_t slice, int64_t precision, int64_t offset_groups) {
  const DeformOptions options{slice, precision, offset_groups};
  JCB_RETURN_IF_ERROR(CheckDeformFprop(g, options, x, cells, corners, w, *y));
  JCB_RETURN_IF_ERROR(CheckCall(Operation::kFprop, g, options, x.element_type(),
                                {x, cells, corners, w, *y, *workspace}));
  const Call call(Operation::kFprop, g, options, x.element_type());
  ColumnGemms gemms = call.gemms();
  JCB_RETURN_IF_ERROR(gemms.FindAlgorithm());
  Workspace rest(*workspace);
  char* columns =
      rest.Take<char>(call.column_count() * call.arithmetic.operand_bytes);
  JCB_RETURN_IF_ERROR(rest.Check("fprop", g));
  return ForEachSlice(g, call.slice, [&](int64_t n, int64_t samples) {
    JCB_RETURN_IF_ERROR(call.Check(SampleColumns(
        stream, g, call.AtSample(cells, corners, n), samples, call.dtype,
        At(x.untyped_data(), n * call.x_bytes()), columns)));
    return gemms.Run(stream, samples, columns, w.untyped_data(),
                     At(y->untyped_data(), n * call.y_bytes()));
  });
}

// Where dx is wanted: its entries sorted, and what that takes.
struct Sorting {
  SortedEntries sorted;
  SortSpace space;

  Sorting(const Call& call, Workspace& workspace) {
    const int64_t entries = call.entries(call.slice);
    sorted.start = workspace.Take<int32_t>(
        call.slice * CellsPerSample(call.g, call.offset_groups) + 1);
    sorted.row = workspace.Take<int32_t>(entries);
    sorted.corners = workspace.Take<char>(call.corner_bytes(call.slice));
    for (int i = 0; i < 2; ++i) {
      space.keys[i] = workspace.Take<uint32_t>(entries);
      space.values[i] = workspace.Take<uint32_t>(entries);
    }
    space.temporary = workspace.Take<char>(SortBytes(entries));
  }
};

ffi::Error DgradImpl(cudaStream_t stream, ffi::AnyBuffer x,
                     ffi::AnyBuffer cells, ffi::AnyBuffer corners,
                     ffi::AnyBuffer w, ffi::AnyBuffer dy,
                     ffi::Result<ffi::AnyBuffer> dx,
                     ffi::Result<ffi::AnyBuffer> dcorners,
                     ffi::Result<ffi::AnyBuffer> workspace, ConvGeometry g,
                     int64_t slice, int64_t precision, int64_t offset_groups) {
  const DeformOptions options{slice, precision, offset_groups};
  JCB_RETURN_IF_ERROR(
      CheckDeformDgrad(g, options, x, cells, corners, w, dy, *dx, *dcorners));
  JCB_RETURN_IF_ERROR(
      CheckCall(Operation::kDgrad, g, options, dy.element_type(),
                {x, cells, corners, w, dy, *dx, *dcorners, *workspace}));
  const Call call(Operation::kDgrad, g, options, dy.element_type());
  const bool wants_dx = dx->element_count() > 0;
  ColumnGemms gemms = call.gemms();
  JCB_RETURN_IF_ERROR(gemms.FindAlgorithm());
  Workspace rest(*workspace);
  char* dcolumns =
      rest.Take<char>(call.column_count() * call.arithmetic.accumulator_bytes);
  std::optional<Sorting> sorting;
  if (wants_dx) sorting.emplace(call, rest);
  JCB_RETURN_IF_ERROR(rest.Check("dgrad", g));
  return ForEachSlice(g, call.slice, [&](int64_t n, int64_t samples) {
    const Sampling at = call.AtSample(cells, corners, n);
    JCB_RETURN_IF_ERROR(gemms.Run(stream, samples,
                                  At(dy.untyped_data(), n * call.y_bytes()),
                                  w.untyped_data(), dcolumns));
    if (dcorners->element_count() > 0) {
      JCB_RETURN_IF_ERROR(call.Check(
          CornerGrads(stream, g, at, samples, call.dtype,
                      At(x.untyped_data(), n * call.x_bytes()), dcolumns,
                      At(dcorners->untyped_data(), call.corner_bytes(n)))));
    }
    if (!wants_dx) return ffi::Error::Success();
    JCB_RETURN_IF_ERROR(call.Check(SortEntries(
        stream, g, at, samples, call.dtype, sorting->space, sorting->sorted)));
    return call.Check(GatherColumns(
        stream, g, sorting->sorted, offset_groups, samples, call.dtype,
        dcolumns, At(dx->untyped_data(), n * call.x_bytes())));
  });
}

ffi::Error WgradImpl(cudaStream_t stream, ffi::AnyBuffer x,
                     ffi::AnyBuffer cells, ffi::AnyBuffer corners,
                     ffi::AnyBuffer dy, ffi::Result<ffi::AnyBuffer> dw,
                     ffi::Result<ffi::AnyBuffer> workspace, ConvGeometry g,
                     int64_t slice, int64_t precision, int64_t offset_groups) {
  const DeformOptions options{slice, precision, offset_groups};
  JCB_RETURN_IF_ERROR(CheckDeformWgrad(g, options, x, cells, corners, dy, *dw));
  JCB_RETURN_IF_ERROR(CheckCall(Operation::kWgrad, g, options, x.element_type(),
                                {x, cells, corners, dy, *dw, *workspace}));
  const Call call(Operation::kWgrad, g, options, x.element_type());
  ColumnGemms gemms = call.gemms();
  JCB_RETURN_IF_ERROR(gemms.FindAlgorithm());
  Workspace rest(*workspace);
  char* columns =
      rest.Take<char>(call.column_count() * call.arithmetic.operand_bytes);
  const ColumnGemms::WgradSpace space(g, call.slice, call.arithmetic, rest);
  JCB_RETURN_IF_ERROR(rest.Check("wgrad", g));
  return ForEachSlice(g, call.slice, [&](int64_t n, int64_t samples) {
    JCB_RETURN_IF_ERROR(call.Check(SampleColumns(
        stream, g, call.AtSample(cells, corners, n), samples, call.dtype,
        At(x.untyped_data(), n * call.x_bytes()), columns)));
    return gemms.Wgrad(stream, n, samples, call.dtype, columns,
                       At(dy.untyped_data(), n * call.y_bytes()), space,
                       dw->untyped_data());
  });
}

// Before the first execution and outside of captures: cuBLAS's handle and the
// algorithm of the products. Every buffer and attribute is decoded, as these
// are the same for both stages.
template <Operation operation>
ffi::Error FindAlgorithm(const ConvGeometry& g, ffi::DataType dtype,
                         const DeformOptions& options) {
  JCB_RETURN_IF_ERROR(CheckCall(operation, g, options, dtype, {}));
  return Call(operation, g, options, dtype).gemms().FindAlgorithm();
}

ffi::Error FpropInitialize(ffi::AnyBuffer x, ffi::AnyBuffer cells,
                           ffi::AnyBuffer corners, ffi::AnyBuffer w,
                           ffi::Result<ffi::AnyBuffer> y,
                           ffi::Result<ffi::AnyBuffer>, ConvGeometry g,
                           int64_t slice, int64_t precision,
                           int64_t offset_groups) {
  const DeformOptions options{slice, precision, offset_groups};
  JCB_RETURN_IF_ERROR(CheckDeformFprop(g, options, x, cells, corners, w, *y));
  return FindAlgorithm<Operation::kFprop>(g, x.element_type(), options);
}

ffi::Error DgradInitialize(ffi::AnyBuffer x, ffi::AnyBuffer cells,
                           ffi::AnyBuffer corners, ffi::AnyBuffer w,
                           ffi::AnyBuffer dy, ffi::Result<ffi::AnyBuffer> dx,
                           ffi::Result<ffi::AnyBuffer> dcorners,
                           ffi::Result<ffi::AnyBuffer>, ConvGeometry g,
                           int64_t slice, int64_t precision,
                           int64_t offset_groups) {
  const DeformOptions options{slice, precision, offset_groups};
  JCB_RETURN_IF_ERROR(
      CheckDeformDgrad(g, options, x, cells, corners, w, dy, *dx, *dcorners));
  return FindAlgorithm<Operation::kDgrad>(g, dy.element_type(), options);
}

ffi::Error WgradInitialize(ffi::AnyBuffer x, ffi::AnyBuffer cells,
                           ffi::AnyBuffer corners, ffi::AnyBuffer dy,
                           ffi::Result<ffi::AnyBuffer> dw,
                           ffi::Result<ffi::AnyBuffer>, ConvGeometry g,
                           int64_t slice, int64_t precision,
                           int64_t offset_groups) {
  const DeformOptions options{slice, precision, offset_groups};
  JCB_RETURN_IF_ERROR(CheckDeformWgrad(g, options, x, cells, corners, dy, *dw));
  return FindAlgorithm<Operation::kWgrad>(g, x.element_type(), options);
}

auto Execute() {
  return ffi::Ffi::Bind().Ctx<ffi::PlatformStream<cudaStream_t>>();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(CudaDeformFpropExecute, FpropImpl,
                              BindDeformFprop(Execute()),
                              {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER_SYMBOL(CudaDeformDgradExecute, DgradImpl,
                              BindDeformDgrad(Execute()),
                              {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER_SYMBOL(CudaDeformWgradExecute, WgradImpl,
                              BindDeformWgrad(Execute()),
                              {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER_SYMBOL(CudaDeformFpropInitialize, FpropInitialize,
                              BindDeformFprop(ffi::Ffi::BindInitialize()));
XLA_FFI_DEFINE_HANDLER_SYMBOL(CudaDeformDgradInitialize, DgradInitialize,
                              BindDeformDgrad(ffi::Ffi::BindInitialize()));
XLA_FFI_DEFINE_HANDLER_SYMBOL(CudaDeformWgradInitialize, WgradInitialize,
                              BindDeformWgrad(ffi::Ffi::BindInitialize()));

}  // namespace jax_convbatch
