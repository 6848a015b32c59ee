// SPDX-License-Identifier: Apache-2.0
// The short causal depthwise convolution: y, all gradients, and one more input.
#include "cuda/sm80/causal_conv1d/causal_conv1d.h"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>

#include "causal_conv1d_call.h"
#include "cuda/common/status.h"
#include "cuda/handlers/handlers.h"
#include "ffi_checks.h"

namespace jax_convbatch {
namespace {

std::string Describe(const CausalConv1d& call) {
  std::ostringstream out;
  out << "causal_conv1d of x[" << call.G << ", " << call.n << ", " << call.L
      << ", " << call.C << "], " << call.taps << " taps, dilation "
      << call.dilation;
  return out.str();
}

const float* Floats(const ffi::AnyBuffer& buffer) {
  return static_cast<const float*>(buffer.untyped_data());
}

float* Floats(ffi::Result<ffi::AnyBuffer>& buffer) {
  return static_cast<float*>(buffer->untyped_data());
}

// Kernels have what Python plans for them (jax_convbatch/_causal/lowering.py).
ffi::Error CheckKernels(const CausalConv1d& call) {
  if (call.taps <= causal::kMostTaps && call.dtype != ffi::F64) {
    return ffi::Error::Success();
  }
  return ffi::Error::InvalidArgument("jax_convbatch: no kernel runs " +
                                     Describe(call));
}

causal::Arrays ArraysOf(const CausalConv1d& call, const ffi::AnyBuffer& x,
                        const ffi::AnyBuffer& w, const ffi::AnyBuffer& bias,
                        const ffi::AnyBuffer& state) {
  causal::Arrays arrays{};
  arrays.x = x.untyped_data();
  arrays.w = Floats(w);
  arrays.bias = Floats(bias);
  if (call.has_state) arrays.state = state.untyped_data();
  return arrays;
}

ffi::Error FpropExecute(cudaStream_t stream, ffi::AnyBuffer x, ffi::AnyBuffer w,
                        ffi::AnyBuffer bias, ffi::AnyBuffer state,
                        ffi::AnyBuffer ids, ffi::Result<ffi::AnyBuffer> y,
                        int64_t dilation, std::string_view activation) {
  CausalConv1d call;
  JCB_RETURN_IF_ERROR(
      DecodeCausalConv1d(x, w, bias, state, ids, dilation, activation, &call));
  JCB_RETURN_IF_ERROR(CheckLikeX("y", *y, call));
  JCB_RETURN_IF_ERROR(CheckKernels(call));
  if (call.x_size() == 0) return ffi::Error::Success();
  causal::Arrays arrays = ArraysOf(call, x, w, bias, state);
  if (call.has_ids) arrays.ids = ids.typed_data<int32_t>();
  arrays.y = y->untyped_data();
  return ToError(causal::Fprop(stream, call, arrays),
                 [&] { return Describe(call); });
}

ffi::Error GradExecute(cudaStream_t stream, ffi::AnyBuffer x, ffi::AnyBuffer w,
                       ffi::AnyBuffer bias, ffi::AnyBuffer state,
                       ffi::AnyBuffer ids, ffi::AnyBuffer dy,
                       ffi::Result<ffi::AnyBuffer> dx,
                       ffi::Result<ffi::AnyBuffer> dw,
                       ffi::Result<ffi::AnyBuffer> dbias,
                       ffi::Result<ffi::AnyBuffer> dstate,
                       ffi::Result<ffi::AnyBuffer> workspace, int64_t dilation,
                       std::string_view activation) {
  CausalConv1d call;
  JCB_RETURN_IF_ERROR(
      DecodeCausalConv1d(x, w, bias, state, ids, dilation, activation, &call));
  JCB_RETURN_IF_ERROR(
      CheckCausalConv1dGrad(call, dy, *dx, *dw, *dbias, *dstate));
  JCB_RETURN_IF_ERROR(CheckKernels(call));
  if (call.x_size() == 0) {
    for (auto* sum : {&dw, &dbias, &dstate}) {
      const auto bytes = (*sum)->size_bytes();
      if (bytes == 0) continue;
      const cudaError_t status =
          cudaMemsetAsync((*sum)->untyped_data(), 0, bytes, stream);
      JCB_RETURN_IF_ERROR(ToError(status, [&] { return Describe(call); }));
    }
    return ffi::Error::Success();
  }
  const int64_t needed = causal::PartialSums(call) * int64_t{sizeof(float)};
  if (static_cast<int64_t>(workspace->size_bytes()) < needed) {
    return ffi::Error::Internal("jax_convbatch: the workspace has too few of " +
                                std::to_string(needed) + " bytes, in " +
                                Describe(call));
  }
  causal::Arrays arrays = ArraysOf(call, x, w, bias, state);
  if (call.has_ids) arrays.ids = ids.typed_data<int32_t>();
  arrays.dy = dy.untyped_data();
  arrays.dx = dx->untyped_data();
  if (call.has_state) arrays.dstate = dstate->untyped_data();
  arrays.dw = Floats(dw);
  arrays.dbias = Floats(dbias);
  arrays.partials = Floats(workspace);
  return ToError(causal::Grad(stream, call, arrays),
                 [&] { return Describe(call); });
}

ffi::Error UpdateExecute(cudaStream_t stream, ffi::AnyBuffer state,
                         ffi::AnyBuffer x, ffi::AnyBuffer w,
                         ffi::AnyBuffer bias, ffi::Result<ffi::AnyBuffer> y,
                         ffi::Result<ffi::AnyBuffer> new_state,
                         int64_t dilation, std::string_view activation) {
  CausalConv1d call;
  JCB_RETURN_IF_ERROR(DecodeCausalConv1dUpdate(
      state, x, w, bias, *y, *new_state, dilation, activation, &call));
  JCB_RETURN_IF_ERROR(CheckKernels(call));
  if (call.x_size() == 0) return ffi::Error::Success();
  causal::Arrays arrays = ArraysOf(call, x, w, bias, state);
  arrays.y = y->untyped_data();
  arrays.new_state = new_state->untyped_data();
  return ToError(causal::Update(stream, call, arrays),
                 [&] { return Describe(call); });
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    CudaCausalConv1dExecute, FpropExecute,
    BindCausalConv1d(ffi::Ffi::Bind().Ctx<ffi::PlatformStream<cudaStream_t>>()),
    {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    CudaCausalConv1dGradExecute, GradExecute,
    BindCausalConv1dGrad(
        ffi::Ffi::Bind().Ctx<ffi::PlatformStream<cudaStream_t>>()),
    {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    CudaCausalConv1dUpdateExecute, UpdateExecute,
    BindCausalConv1dUpdate(
        ffi::Ffi::Bind().Ctx<ffi::PlatformStream<cudaStream_t>>()),
    {ffi::Traits::kCmdBufferCompatible});

}  // namespace jax_convbatch
