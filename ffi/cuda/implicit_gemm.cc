// The engine implicit_gemm: convolutions of bf16, f16 and f32 (as TF32) on
// Hopper tensor cores, without columns in memory. The kernels are in hopper/.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "conv_geometry.h"
#include "cuda/conv_call.h"
#include "cuda/handlers.h"
#include "cuda/hopper/configs.h"
#include "cuda/hopper/paths.h"
#include "cuda/status.h"
#include "ffi_checks.h"

namespace jax_convbatch {
namespace {

constexpr hopper::Op OpOf(Operation operation) {
  switch (operation) {
    case Operation::kFprop:
      return hopper::Op::kFprop;
    case Operation::kDgrad:
      return hopper::Op::kDgrad;
    default:
      return hopper::Op::kWgrad;
  }
}

// Nothing where the engine has no arithmetic for it. `precision` is
// jax.lax.Precision: 0 DEFAULT, 1 HIGH, 2 HIGHEST; TF32 is the default's alone.
std::optional<hopper::Type> TypeOf(ffi::DataType dtype, int64_t precision) {
  switch (dtype) {
    case ffi::BF16:
      return hopper::Type::kBf16;
    case ffi::F16:
      return hopper::Type::kF16;
    case ffi::F32:
      if (precision == 0) return hopper::Type::kTf32;
      [[fallthrough]];
    default:
      return std::nullopt;
  }
}

// Of the current device.
cudaError_t Attribute(cudaDeviceAttr attribute, int* value) {
  int device;
  const cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  return cudaDeviceGetAttribute(value, attribute, device);
}

ffi::Error CheckDevice(Operation operation, const ConvGeometry& g) {
  auto where = [&] { return Describe(Name(operation), g); };
  int major, minor;
  JCB_RETURN_IF_ERROR(
      ToError(Attribute(cudaDevAttrComputeCapabilityMajor, &major), where));
  JCB_RETURN_IF_ERROR(
      ToError(Attribute(cudaDevAttrComputeCapabilityMinor, &minor), where));
  if (major == 9 && minor == 0) return ffi::Error::Success();
  return ffi::Error(
      ffi::ErrorCode::kFailedPrecondition,
      "jax_convbatch: implicit_gemm needs a GPU of compute capability 9.0, and "
      "this one has " +
          std::to_string(major) + "." + std::to_string(minor) + ", in " +
          where());
}

ffi::Error Run(Operation operation, const ConvBuffers& buffers,
               const ConvGeometry& g, int64_t precision,
               std::string_view config, hopper::Stage stage,
               cudaStream_t stream) {
  JCB_RETURN_IF_ERROR(CheckBuffers(operation, g, buffers));
  const ffi::DataType dtype = buffers.lhs.element_type();
  const std::optional<hopper::Type> type = TypeOf(dtype, precision);
  if (!type || buffers.rhs.element_type() != dtype ||
      buffers.result.element_type() != dtype) {
    return UnsupportedDtypes(operation, g);
  }
  JCB_RETURN_IF_ERROR(CheckDevice(operation, g));

  auto where = [&] { return Describe(Name(operation), g); };
  int multiprocessors;
  JCB_RETURN_IF_ERROR(ToError(
      Attribute(cudaDevAttrMultiProcessorCount, &multiprocessors), where));
  const std::optional<hopper::Plan> plan =
      hopper::FindConfig(OpOf(operation), g, *type, multiprocessors, config);
  if (!plan) {
    return ffi::Error::InvalidArgument(
        "jax_convbatch: implicit_gemm has no configuration '" +
        std::string(config) + "' on this GPU for " + where());
  }
  Workspace workspace(buffers.workspace);
  char* pieces = workspace.Take<char>(plan->workspace);
  JCB_RETURN_IF_ERROR(workspace.Check(Name(operation), g));

  const hopper::ConvCall call = {
      g,
      *type,
      *plan,
      buffers.lhs.untyped_data(),
      buffers.rhs.untyped_data(),
      buffers.result.untyped_data(),
      pieces,
  };
  return ToError(hopper::RunPath(OpOf(operation), call, stage, stream), where);
}

template <Operation operation>
ffi::Error Execute(cudaStream_t stream, ffi::AnyBuffer lhs, ffi::AnyBuffer rhs,
                   ffi::Result<ffi::AnyBuffer> result,
                   ffi::Result<ffi::AnyBuffer> workspace, const ConvGeometry& g,
                   int64_t /*slice*/, int64_t precision,
                   std::string_view config) {
  return Run(operation, {lhs, rhs, *result, *workspace}, g, precision, config,
             hopper::Stage::kLaunch, stream);
}

// Runs before Execute, outside any capture, so that Execute finds the kernels
// loaded.
template <Operation operation>
ffi::Error Initialize(ffi::AnyBuffer lhs, ffi::AnyBuffer rhs,
                      ffi::Result<ffi::AnyBuffer> result,
                      ffi::Result<ffi::AnyBuffer> workspace,
                      const ConvGeometry& g, int64_t /*slice*/,
                      int64_t precision, std::string_view config) {
  return Run(operation, {lhs, rhs, *result, *workspace}, g, precision, config,
             hopper::Stage::kPrepare, nullptr);
}

auto BindExecute() {
  return BindConvExecute().Attr<std::string_view>("config");
}

auto BindInitialize() {
  return BindConvInitialize().Attr<std::string_view>("config");
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(ImplicitFpropExecute, Execute<Operation::kFprop>,
                              BindExecute(),
                              {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER_SYMBOL(ImplicitDgradExecute, Execute<Operation::kDgrad>,
                              BindExecute(),
                              {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER_SYMBOL(ImplicitWgradExecute, Execute<Operation::kWgrad>,
                              BindExecute(),
                              {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER_SYMBOL(ImplicitFpropInitialize,
                              Initialize<Operation::kFprop>, BindInitialize());
XLA_FFI_DEFINE_HANDLER_SYMBOL(ImplicitDgradInitialize,
                              Initialize<Operation::kDgrad>, BindInitialize());
XLA_FFI_DEFINE_HANDLER_SYMBOL(ImplicitWgradInitialize,
                              Initialize<Operation::kWgrad>, BindInitialize());

}  // namespace jax_convbatch
