// SPDX-License-Identifier: Apache-2.0
// The FFI handlers of the engine cudnn.
#include <cuda_runtime_api.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "cuda/common/conv_call.h"
#include "cuda/cudnn/library.h"
#include "cuda/cudnn/plans.h"
#include "cuda/handlers/handlers.h"
#include "cuda/handlers/layer_call.h"
#include "epilogue_call.h"
#include "ffi_checks.h"

namespace jax_convbatch {
namespace {

using cudnn_frontend::DataType_t;

std::optional<DataType_t> TypeOf(ffi::DataType dtype) {
  switch (dtype) {
    case ffi::F64:
      return DataType_t::DOUBLE;
    case ffi::F32:
      return DataType_t::FLOAT;
    case ffi::F16:
      return DataType_t::HALF;
    case ffi::BF16:
      return DataType_t::BFLOAT16;
    default:
      return std::nullopt;
  }
}

// What f() returns, and what it throws as an error with the call's sizes.
template <typename F>
ffi::Error Guarded(Operation operation, const ConvGeometry& g, F&& f) {
  try {
    return f();
  } catch (const std::exception& error) {
    return ffi::Error::Internal(std::string("jax_convbatch: cuDNN: ") +
                                error.what() + " in " +
                                Describe(Name(operation), g));
  }
}

// Pointers to arrays by the names that the graph has for them.
using Arrays = std::unordered_map<int64_t, void*>;

ffi::Error Launch(const cudnn::Problem& problem, std::string_view config,
                  Arrays arrays, ffi::AnyBuffer workspace,
                  cudaStream_t stream) {
  const auto plan = cudnn::FindPlan(problem, std::string(config));
  Workspace space(workspace);
  char* const data = space.Take<char>(plan->workspace);
  JCB_RETURN_IF_ERROR(space.Check(Name(problem.operation), problem.g));
  const cudnn::DeviceHandle handle;
  cudnn_frontend::detail::set_stream(handle.get(), stream);
  auto status = plan->graph->execute_plan_at_index(handle.get(), arrays, data,
                                                   plan->index);
  if (status.is_bad()) throw std::runtime_error(status.get_message());
  return ffi::Error::Success();
}

// Runs a call, or, without `launch`, builds what it needs.
ffi::Error Run(Operation operation, const ConvBuffers& buffers,
               const ConvGeometry& g, std::string_view config,
               const cudnn::Layer& layer, Arrays more, bool launch,
               cudaStream_t stream) {
  JCB_RETURN_IF_ERROR(CheckBuffers(operation, g, buffers));
  const auto operand = TypeOf(buffers.lhs.element_type());
  const auto result = TypeOf(buffers.result.element_type());
  if (!operand || !result ||
      buffers.rhs.element_type() != buffers.lhs.element_type()) {
    return UnsupportedDtypes(operation, g);
  }
  const cudnn::Problem problem{operation, g, *operand, *result, layer};
  return Guarded(operation, g, [&] {
    if (!launch) {
      // And with it the device's handle: nothing may be made later, while a
      // graph is captured.
      cudnn::FindPlan(problem, std::string(config));
      return ffi::Error::Success();
    }
    more[cudnn::kLhs] = buffers.lhs.untyped_data();
    more[cudnn::kRhs] = buffers.rhs.untyped_data();
    more[cudnn::kResult] = buffers.result.untyped_data();
    return Launch(problem, config, std::move(more), buffers.workspace, stream);
  });
}

template <Operation operation>
ffi::Error Execute(cudaStream_t stream, ffi::AnyBuffer lhs, ffi::AnyBuffer rhs,
                   ffi::Result<ffi::AnyBuffer> result,
                   ffi::Result<ffi::AnyBuffer> workspace, const ConvGeometry& g,
                   int64_t /*slice*/, int64_t /*precision*/,
                   std::string_view config) {
  return Run(operation, {lhs, rhs, *result, *workspace}, g, config, {}, {},
             /*launch=*/true, stream);
}

template <Operation operation>
ffi::Error Initialize(ffi::AnyBuffer lhs, ffi::AnyBuffer rhs,
                      ffi::Result<ffi::AnyBuffer> result,
                      ffi::Result<ffi::AnyBuffer> workspace,
                      const ConvGeometry& g, int64_t /*slice*/,
                      int64_t /*precision*/, std::string_view config) {
  return Run(operation, {lhs, rhs, *result, *workspace}, g, config, {}, {},
             /*launch=*/false, nullptr);
}

ffi::Error RunLayer(ffi::AnyBuffer x, ffi::AnyBuffer w,
                    const ffi::RemainingArgs& operands, ffi::AnyBuffer y,
                    ffi::AnyBuffer workspace, const ffi::RemainingRets& results,
                    const ConvGeometry& g, std::string_view config,
                    const EpilogueAttributes& attributes, bool launch,
                    cudaStream_t stream) {
  const EpilogueShape shape{g.N * g.output_pixels(), g.K};
  EpilogueCall call;
  JCB_RETURN_IF_ERROR(
      DecodeOperands(attributes, shape, y.element_type(), operands, &call));
  if (attributes.save_signs) {
    return ffi::Error::InvalidArgument(
        "jax_convbatch: cuDNN makes no signs of a layer's result");
  }
  if (attributes.save_input) {
    JCB_RETURN_IF_ERROR(
        DecodeResult(shape, y.element_type(), results, 0, &call.z));
  }
  const cudnn::Layer layer{call.scale != nullptr, call.bias != nullptr,
                           call.residual != nullptr, call.z != nullptr,
                           call.activation};
  Arrays more;
  const auto add = [&](cudnn::Uid uid, const void* data) {
    if (data != nullptr) more[uid] = const_cast<void*>(data);
  };
  add(cudnn::kScale, call.scale);
  add(cudnn::kBias, call.bias);
  add(cudnn::kResidual, call.residual);
  add(cudnn::kInput, call.z);
  return Run(Operation::kFprop, {x, w, y, workspace}, g, config, layer,
             std::move(more), launch, stream);
}

ffi::Error LayerExecute(cudaStream_t stream, ffi::AnyBuffer x, ffi::AnyBuffer w,
                        ffi::RemainingArgs operands,
                        ffi::Result<ffi::AnyBuffer> y,
                        ffi::Result<ffi::AnyBuffer> workspace,
                        ffi::RemainingRets results, const ConvGeometry& g,
                        int64_t /*slice*/, int64_t /*precision*/,
                        std::string_view config,
                        const EpilogueAttributes& attributes) {
  return RunLayer(x, w, operands, *y, *workspace, results, g, config,
                  attributes, /*launch=*/true, stream);
}

ffi::Error LayerInitialize(ffi::AnyBuffer x, ffi::AnyBuffer w,
                           ffi::RemainingArgs operands,
                           ffi::Result<ffi::AnyBuffer> y,
                           ffi::Result<ffi::AnyBuffer> workspace,
                           ffi::RemainingRets results, const ConvGeometry& g,
                           int64_t /*slice*/, int64_t /*precision*/,
                           std::string_view config,
                           const EpilogueAttributes& attributes) {
  return RunLayer(x, w, operands, *y, *workspace, results, g, config,
                  attributes, /*launch=*/false, nullptr);
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(CudnnFpropExecute, Execute<Operation::kFprop>,
                              BindConfiguredExecute(),
                              {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER_SYMBOL(CudnnDgradExecute, Execute<Operation::kDgrad>,
                              BindConfiguredExecute(),
                              {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER_SYMBOL(CudnnWgradExecute, Execute<Operation::kWgrad>,
                              BindConfiguredExecute(),
                              {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    CudnnFpropActExecute, LayerExecute,
    BindLayer(ffi::Ffi::Bind().Ctx<ffi::PlatformStream<cudaStream_t>>()),
    {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER_SYMBOL(CudnnFpropInitialize,
                              Initialize<Operation::kFprop>,
                              BindConfiguredInitialize());
XLA_FFI_DEFINE_HANDLER_SYMBOL(CudnnDgradInitialize,
                              Initialize<Operation::kDgrad>,
                              BindConfiguredInitialize());
XLA_FFI_DEFINE_HANDLER_SYMBOL(CudnnWgradInitialize,
                              Initialize<Operation::kWgrad>,
                              BindConfiguredInitialize());
XLA_FFI_DEFINE_HANDLER_SYMBOL(CudnnFpropActInitialize, LayerInitialize,
                              BindLayer(ffi::Ffi::BindInitialize()));

}  // namespace jax_convbatch
