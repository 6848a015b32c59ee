// SPDX-License-Identifier: Apache-2.0
// The handler of a norm, an activation and a convolution in one kernel:
// norm_act.h.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "activation.h"
#include "conv_geometry.h"
#include "cuda/common/memo.h"
#include "cuda/common/status.h"
#include "cuda/handlers/handlers.h"
#include "cuda/reductions/add_channel_sums.h"
#include "cuda/select/hopper_device.h"
#include "cuda/sm90/kernels/norm_act/norm_act.h"
#include "ffi_checks.h"

namespace jax_convbatch {
namespace {

// Which operands there are besides x, w, scale and shift; and whether sums are
// results, [N, K] each, and bytes for those of tiles.
struct NormActAttributes {
  std::string_view activation;
  int64_t bias, residual, sums;
};

}  // namespace
}  // namespace jax_convbatch

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(
    jax_convbatch::NormActAttributes,
    StructMember<std::string_view>("activation"),
    StructMember<int64_t>("bias"), StructMember<int64_t>("residual"),
    StructMember<int64_t>("sums"));

namespace jax_convbatch {
namespace {

int64_t Count(const ffi::AnyBuffer& buffer) {
  return static_cast<int64_t>(buffer.element_count());
}

ffi::Error Run(const ffi::AnyBuffer& x, const ffi::AnyBuffer& w,
               const ffi::AnyBuffer& scale, const ffi::AnyBuffer& shift,
               const ffi::RemainingArgs& more, ffi::Result<ffi::AnyBuffer> y,
               const ffi::RemainingRets& results, const ConvGeometry& g,
               const NormActAttributes& a, Stage stage, cudaStream_t stream) {
  auto where = [&] { return Describe("norm_act_fprop", g); };
  auto wrong = [&](const char* what) {
    return ffi::Error::InvalidArgument(
        std::string("jax_convbatch: size or dtype of ") + what + " in " +
        where());
  };
  const ffi::DataType dtype = x.element_type();
  const auto type = HopperType(dtype, /*precision=*/0);
  if (!type || *type == hopper::Type::kTf32) return wrong("x");
  if (Count(x) != g.x_size()) return wrong("x");
  if (w.element_type() != dtype || Count(w) != g.w_size()) return wrong("w");
  if (y->element_type() != dtype || Count(*y) != g.y_size()) return wrong("y");
  for (const auto& [name, buffer] :
       {std::pair{"scale", &scale}, std::pair{"shift", &shift}}) {
    if (buffer->element_type() != ffi::F32 || Count(*buffer) != Count(scale) ||
        (Count(*buffer) != g.C && Count(*buffer) != g.N * g.C)) {
      return wrong(name);
    }
  }
  const auto activation = ParseActivation(a.activation);
  if (!activation) return wrong("the activation");
  size_t next = 0;
  const void *bias = nullptr, *residual = nullptr;
  for (const auto& [name, present, count, data] :
       {std::tuple{"bias", a.bias, g.K, &bias},
        std::tuple{"residual", a.residual, g.y_size(), &residual}}) {
    if (!present) continue;
    auto buffer = more.get<ffi::AnyBuffer>(next++);
    if (!buffer.has_value()) return buffer.error();
    if (buffer->element_type() != dtype || Count(*buffer) != count) {
      return wrong(name);
    }
    *data = buffer->untyped_data();
  }
  bool hopper;
  int multiprocessors;
  JCB_RETURN_IF_ERROR(CheckDevice(/*any_from_8=*/false, where, &hopper));
  JCB_RETURN_IF_ERROR(
      ToError(DeviceAttribute(cudaDevAttrMultiProcessorCount, &multiprocessors),
              where));
  const auto plan = hopper::PlanNormAct(g, *type, multiprocessors);
  if (!plan) {
    return ffi::Error::InvalidArgument(
        "jax_convbatch: implicit_gemm does not cover " + where());
  }
  float* found[3] = {};  // sums, squares, those of tiles
  if (a.sums) {
    const int64_t partials = g.N * plan->chunks * 2 * g.K;
    const int64_t bytes[3] = {g.N * g.K * 4, g.N * g.K * 4, partials * 4};
    for (size_t i = 0; i < 3; ++i) {
      auto buffer = results.get<ffi::AnyBuffer>(i);
      if (!buffer.has_value()) return buffer.error();
      if (static_cast<int64_t>((**buffer).size_bytes()) < bytes[i]) {
        return wrong("the sums");
      }
      found[i] = static_cast<float*>((**buffer).untyped_data());
    }
  }
  const hopper::NormActCall call = {
      g,
      *type,
      *plan,
      *activation,
      Count(scale) != g.C,
      x.untyped_data(),
      w.untyped_data(),
      static_cast<const float*>(scale.untyped_data()),
      static_cast<const float*>(shift.untyped_data()),
      bias,
      residual,
      y->untyped_data(),
      found[2],
  };
  JCB_RETURN_IF_ERROR(
      ToError(hopper::NormActFprop(call, stage, stream), where));
  if (!a.sums || stage == Stage::kPrepare) return ffi::Error::Success();
  return ToError(AddChannelSums(stream, g.N, plan->chunks, g.K, found[2],
                                found[0], found[1]),
                 where);
}

ffi::Error Execute(cudaStream_t stream, ffi::AnyBuffer x, ffi::AnyBuffer w,
                   ffi::AnyBuffer scale, ffi::AnyBuffer shift,
                   ffi::RemainingArgs more, ffi::Result<ffi::AnyBuffer> y,
                   ffi::RemainingRets results, ConvGeometry g,
                   NormActAttributes a) {
  return Run(x, w, scale, shift, more, y, results, g, a, Stage::kLaunch,
             stream);
}

// Before the first execution and outside of captures: loads the kernel.
ffi::Error Initialize(ffi::AnyBuffer x, ffi::AnyBuffer w, ffi::AnyBuffer scale,
                      ffi::AnyBuffer shift, ffi::RemainingArgs more,
                      ffi::Result<ffi::AnyBuffer> y, ffi::RemainingRets results,
                      ConvGeometry g, NormActAttributes a) {
  int device;
  JCB_RETURN_IF_ERROR(
      ToError(cudaGetDevice(&device), [&] { return Describe("norm_act", g); }));
  CallKey key;
  key.Add(device).Add(g).Add(x.element_type()).Add(a.activation);
  key.Add(a.bias).Add(a.residual).Add(a.sums);
  struct Tag;
  return PrepareOnce<Tag>(key, [&] {
    return Run(x, w, scale, shift, more, y, results, g, a, Stage::kPrepare,
               nullptr);
  });
}

template <typename Binding>
auto Bind(Binding&& binding) {
  return std::forward<Binding>(binding)
      .template Arg<ffi::AnyBuffer>()  // x
      .template Arg<ffi::AnyBuffer>()  // w
      .template Arg<ffi::AnyBuffer>()  // scale
      .template Arg<ffi::AnyBuffer>()  // shift
      .RemainingArgs()                 // of bias, residual
      .template Ret<ffi::AnyBuffer>()  // y
      .RemainingRets()                 // sums, squares and those of tiles
      .template Attr<ConvGeometry>("geometry")
      .template Attr<NormActAttributes>("layer");
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    NormActFpropExecute, Execute,
    Bind(ffi::Ffi::Bind().Ctx<ffi::PlatformStream<cudaStream_t>>()),
    {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER_SYMBOL(NormActFpropInitialize, Initialize,
                              Bind(ffi::Ffi::BindInitialize()));

}  // namespace jax_convbatch
