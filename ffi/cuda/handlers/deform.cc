// SPDX-License-Identifier: Apache-2.0
// Deformable convolution as matrix products over sampled columns, in slices of
// the batch. The products are im2col_gemm's, and so is what the bits do not
// depend on.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <utility>

#include "conv_geometry.h"
#include "cuda/common/conv_call.h"
#include "cuda/common/dtypes.h"
#include "cuda/common/status.h"
#include "cuda/cublas/column_gemms.h"
#include "cuda/cublas/conv_gemms.h"
#include "cuda/deform/pointwise_gemms.h"
#include "cuda/deform/sampling.h"
#include "cuda/handlers/deform_fprop_call.h"
#include "cuda/handlers/deform_memo.h"
#include "cuda/handlers/handlers.h"
#include "cuda/reductions/sum_samples.h"
#include "cuda/select/hopper_device.h"
#include "deform_call.h"
#include "ffi_checks.h"

namespace jax_convbatch {
namespace {

// Attributes that CUDA has besides: who multiplies, "cublas" or
// "implicit_gemm"; and whether this is Execute or Initialize, which runs before
// it, outside of captures, and does all but the launches.
struct How {
  std::string_view config;
  bool launch;
  cudaStream_t stream;
};

// What the three operations derive from their attributes.
struct Call {
  Operation operation;
  const ConvGeometry& g;
  int64_t offset_groups;
  ffi::DataType dtype;
  Arithmetic arithmetic;
  std::optional<hopper::Type> type;  // in implicit_gemm's kernels
  int64_t slice;
  How how;

  Call(Operation operation, const ConvGeometry& g, const DeformOptions& o,
       ffi::DataType dtype, const How& how)
      : operation(operation),
        g(g),
        offset_groups(o.offset_groups),
        dtype(dtype),
        arithmetic(ArithmeticOf(dtype, o.precision)),
        type(HopperType(dtype, o.precision)),
        slice(std::clamp<int64_t>(
            o.slice, 1,
            std::min({g.N, MaxSamples(g), MaxSampled(g, offset_groups)}))),
        how(how) {}

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

  Sampling AtSample(const ffi::AnyBuffer& cells, const ffi::AnyBuffer& corners,
                    int64_t n) const {
    Positions at;
    at.cells = static_cast<const int32_t*>(cells.untyped_data()) + entries(n);
    at.corners = At(corners.untyped_data(), corner_bytes(n));
    return {at, offset_groups};
  }
  ffi::Error Check(cudaError_t status) const {
    return ToError(status, [&] { return Describe(Name(operation), g); });
  }
  // Calls launch() in Execute alone.
  template <typename Launch>
  ffi::Error IfLaunched(Launch launch) const {
    return how.launch ? Check(launch()) : ffi::Error::Success();
  }
  // The columns of `samples` samples from the n-th.
  ffi::Error Sample(const ffi::AnyBuffer& x, const Sampling& at, int64_t n,
                    int64_t samples, char* columns,
                    const Transposition& matrix = {}) const {
    return IfLaunched([&] {
      return SampleColumns(how.stream, g, at, samples, dtype,
                           At(x.untyped_data(), n * x_bytes()), columns,
                           matrix);
    });
  }
};

// The products of a call.
class Gemms {
 public:
  Gemms(const Call& call, Workspace& workspace)
      : call_(call),
        cublas_(
            {call.operation, call.arithmetic,
             call.operation == Operation::kFprop ? call.arithmetic.operand
                                                 : call.arithmetic.accumulator,
             /*tall=*/true},
            call.g) {
    const bool wgrad = call.operation == Operation::kWgrad;
    if (call.how.config == "implicit_gemm") {
      if (call.type) {
        pointwise_.emplace(call.operation, call.g, *call.type, call.slice);
      }
      supported_ = pointwise_ && pointwise_->covers();
      if (supported_) space_ = workspace.Take<char>(pointwise_->workspace());
      if (wgrad && call.slice < call.g.N) {
        sums_.emplace(call.g, 1, call.arithmetic, workspace);
      }
    } else if (wgrad) {
      sums_.emplace(call.g, call.slice, call.arithmetic, workspace);
    }
  }

  // After the workspace was checked. fprop adds a bias where there is one.
  ffi::Error Prepare(const void* bias = nullptr) {
    bias_ = bias;
    if (pointwise_ && supported_) return ffi::Error::Success();
    if (supported_ && bias == nullptr) return cublas_.FindAlgorithm();
    return ffi::Error::InvalidArgument(
        "jax_convbatch: the kernels of implicit_gemm do not multiply these "
        "columns: " +
        Describe(Name(call_.operation), call_.g));
  }

  // What sampling has to transpose for fprop.
  Transposition Filter(const void* w) const {
    return pointwise_ ? pointwise_->Filter(w, space_) : Transposition{};
  }

  ffi::Error Run(int64_t samples, const void* a, const void* b, void* d) const {
    if (pointwise_) {
      const auto stage = call_.how.launch ? Stage::kLaunch : Stage::kPrepare;
      return call_.Check(pointwise_->Run(call_.how.stream, stage, samples, a, b,
                                         bias_, d, space_));
    }
    if (!call_.how.launch) return ffi::Error::Success();
    return cublas_.Run(call_.how.stream, samples, a, b, d);
  }

  ffi::Error Wgrad(int64_t first, int64_t samples, const void* columns,
                   const void* dy, void* dw) const {
    if (!pointwise_) {
      if (!call_.how.launch) return ffi::Error::Success();
      return cublas_.Wgrad(call_.how.stream, first, samples, call_.dtype,
                           columns, dy, *sums_, dw);
    }
    if (!sums_) return Run(samples, columns, dy, dw);
    JCB_RETURN_IF_ERROR(Run(samples, columns, dy, sums_->partials));
    return call_.IfLaunched([&] {
      return SumSamples(call_.how.stream, call_.dtype, 1, call_.g.w_size(),
                        first == 0, first + samples == call_.g.N,
                        sums_->partials, sums_->accumulator, dw);
    });
  }

 private:
  const Call& call_;
  ColumnGemms cublas_;
  std::optional<PointwiseGemms> pointwise_;
  bool supported_ = true;
  const void* bias_ = nullptr;
  char* space_ = nullptr;
  std::optional<ColumnGemms::WgradSpace> sums_;
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

ffi::Error Fprop(const How& how, const DeformOptions& options,
                 const ConvGeometry& g, ffi::AnyBuffer x, ffi::AnyBuffer cells,
                 ffi::AnyBuffer corners, ffi::AnyBuffer offset,
                 ffi::AnyBuffer mask, ffi::AnyBuffer w, ffi::AnyBuffer bias,
                 ffi::AnyBuffer y, ffi::AnyBuffer workspace) {
  const DeformFpropBuffers b{x, cells, corners, offset, mask, w, bias, y};
  JCB_RETURN_IF_ERROR(CheckDeformFpropCall(g, options, b));
  JCB_RETURN_IF_ERROR(
      CheckCall(Operation::kFprop, g, options, x.element_type(),
                {x, cells, corners, offset, mask, w, bias, y, workspace}));
  const Call call(Operation::kFprop, g, options, x.element_type(), how);
  Workspace rest(workspace);
  char* columns =
      rest.Take<char>(call.column_count() * call.arithmetic.operand_bytes);
  Gemms gemms(call, rest);
  JCB_RETURN_IF_ERROR(rest.Check("fprop", g));
  JCB_RETURN_IF_ERROR(gemms.Prepare(b.bias_data()));
  return ForEachSlice(g, call.slice, [&](int64_t n, int64_t samples) {
    const Sampling at{b.At(call.entries(n)), call.offset_groups};
    const Transposition filter =
        n == 0 ? gemms.Filter(w.untyped_data()) : Transposition{};
    JCB_RETURN_IF_ERROR(call.Sample(x, at, n, samples, columns, filter));
    return gemms.Run(samples, columns, w.untyped_data(),
                     At(y.untyped_data(), n * call.y_bytes()));
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

ffi::Error Dgrad(const How& how, const DeformOptions& options,
                 const ConvGeometry& g, ffi::AnyBuffer x, ffi::AnyBuffer cells,
                 ffi::AnyBuffer corners, ffi::AnyBuffer w, ffi::AnyBuffer dy,
                 ffi::AnyBuffer dx, ffi::AnyBuffer dcorners,
                 ffi::AnyBuffer workspace) {
  JCB_RETURN_IF_ERROR(
      CheckDeformDgrad(g, options, x, cells, corners, w, dy, dx, dcorners));
  JCB_RETURN_IF_ERROR(
      CheckCall(Operation::kDgrad, g, options, dy.element_type(),
                {x, cells, corners, w, dy, dx, dcorners, workspace}));
  const Call call(Operation::kDgrad, g, options, dy.element_type(), how);
  const bool wants_dx = dx.element_count() > 0;
  Workspace rest(workspace);
  char* dcolumns =
      rest.Take<char>(call.column_count() * call.arithmetic.accumulator_bytes);
  Gemms gemms(call, rest);
  std::optional<Sorting> sorting;
  if (wants_dx) sorting.emplace(call, rest);
  JCB_RETURN_IF_ERROR(rest.Check("dgrad", g));
  JCB_RETURN_IF_ERROR(gemms.Prepare());
  return ForEachSlice(g, call.slice, [&](int64_t n, int64_t samples) {
    const Sampling at = call.AtSample(cells, corners, n);
    JCB_RETURN_IF_ERROR(gemms.Run(samples,
                                  At(dy.untyped_data(), n * call.y_bytes()),
                                  w.untyped_data(), dcolumns));
    if (dcorners.element_count() > 0) {
      JCB_RETURN_IF_ERROR(call.IfLaunched([&] {
        return CornerGrads(how.stream, g, at, samples, call.dtype,
                           At(x.untyped_data(), n * call.x_bytes()), dcolumns,
                           At(dcorners.untyped_data(), call.corner_bytes(n)));
      }));
    }
    if (!wants_dx) return ffi::Error::Success();
    JCB_RETURN_IF_ERROR(call.IfLaunched([&] {
      return SortEntries(how.stream, g, at, samples, call.dtype, sorting->space,
                         sorting->sorted);
    }));
    return call.IfLaunched([&] {
      return GatherColumns(how.stream, g, sorting->sorted, call.offset_groups,
                           samples, call.dtype, dcolumns,
                           At(dx.untyped_data(), n * call.x_bytes()));
    });
  });
}

ffi::Error Wgrad(const How& how, const DeformOptions& options,
                 const ConvGeometry& g, ffi::AnyBuffer x, ffi::AnyBuffer cells,
                 ffi::AnyBuffer corners, ffi::AnyBuffer dy, ffi::AnyBuffer dw,
                 ffi::AnyBuffer workspace) {
  JCB_RETURN_IF_ERROR(CheckDeformWgrad(g, options, x, cells, corners, dy, dw));
  JCB_RETURN_IF_ERROR(CheckCall(Operation::kWgrad, g, options, x.element_type(),
                                {x, cells, corners, dy, dw, workspace}));
  const Call call(Operation::kWgrad, g, options, x.element_type(), how);
  Workspace rest(workspace);
  char* columns =
      rest.Take<char>(call.column_count() * call.arithmetic.operand_bytes);
  Gemms gemms(call, rest);
  JCB_RETURN_IF_ERROR(rest.Check("wgrad", g));
  JCB_RETURN_IF_ERROR(gemms.Prepare());
  return ForEachSlice(g, call.slice, [&](int64_t n, int64_t samples) {
    const Sampling at = call.AtSample(cells, corners, n);
    JCB_RETURN_IF_ERROR(call.Sample(x, at, n, samples, columns));
    return gemms.Wgrad(n, samples, columns,
                       At(dy.untyped_data(), n * call.y_bytes()),
                       dw.untyped_data());
  });
}

// The handlers of an operation's two stages: the same arguments, but that
// Execute has a stream.
template <auto operation, typename... Buffers>
struct Stages {
  static ffi::Error Execute(cudaStream_t stream, Buffers... buffers,
                            const ConvGeometry& g, int64_t slice,
                            int64_t precision, int64_t offset_groups,
                            std::string_view config) {
    return operation({config, /*launch=*/true, stream},
                     {slice, precision, offset_groups}, g, Data(buffers)...);
  }
  static ffi::Error Initialize(Buffers... buffers, const ConvGeometry& g,
                               int64_t slice, int64_t precision,
                               int64_t offset_groups, std::string_view config) {
    const DeformOptions options{slice, precision, offset_groups};
    return PrepareDeformOnce<Stages>(
        g, options, config, {Data(buffers)...}, [&] {
          return operation({config, /*launch=*/false, nullptr}, options, g,
                           Data(buffers)...);
        });
  }

 private:
  static ffi::AnyBuffer Data(ffi::AnyBuffer buffer) { return buffer; }
  static ffi::AnyBuffer Data(ffi::Result<ffi::AnyBuffer> buffer) {
    return *buffer;
  }
};

using In = ffi::AnyBuffer;
using Out = ffi::Result<ffi::AnyBuffer>;
using FpropStages = Stages<Fprop, In, In, In, In, In, In, In, Out, Out>;
using DgradStages = Stages<Dgrad, In, In, In, In, In, Out, Out, Out>;
using WgradStages = Stages<Wgrad, In, In, In, In, Out, Out>;

auto OnStream() {
  return ffi::Ffi::Bind().Ctx<ffi::PlatformStream<cudaStream_t>>();
}

template <typename Binding>
auto WithConfig(Binding&& binding) {
  return std::forward<Binding>(binding).template Attr<std::string_view>(
      "config");
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    CudaDeformFpropExecute, FpropStages::Execute,
    WithConfig(DeformAttributes(BindDeformFpropArrays(OnStream()))),
    {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER_SYMBOL(CudaDeformDgradExecute, DgradStages::Execute,
                              WithConfig(BindDeformDgrad(OnStream())),
                              {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER_SYMBOL(CudaDeformWgradExecute, WgradStages::Execute,
                              WithConfig(BindDeformWgrad(OnStream())),
                              {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER_SYMBOL(CudaDeformFpropInitialize,
                              FpropStages::Initialize,
                              WithConfig(DeformAttributes(BindDeformFpropArrays(
                                  ffi::Ffi::BindInitialize()))));
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    CudaDeformDgradInitialize, DgradStages::Initialize,
    WithConfig(BindDeformDgrad(ffi::Ffi::BindInitialize())));
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    CudaDeformWgradInitialize, WgradStages::Initialize,
    WithConfig(BindDeformWgrad(ffi::Ffi::BindInitialize())));

}  // namespace jax_convbatch
