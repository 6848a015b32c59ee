// SPDX-License-Identifier: Apache-2.0
// The handlers of a norm, an activation and a convolution in one kernel, and of
// its gradient: norm_act.h.
#include "cuda/sm90/kernels/norm_act/norm_act.h"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "activation.h"
#include "conv_geometry.h"
#include "cuda/common/memo.h"
#include "cuda/common/status.h"
#include "cuda/handlers/handlers.h"
#include "cuda/reductions/add_channel_sums.h"
#include "cuda/select/hopper_device.h"
#include "ffi_checks.h"

namespace jax_convbatch {
namespace {

// bias, residual: whether there are such operands. groups: of channels, whose
// sums are results; 0 without sums. by_sample: the sums are [N, groups]; else
// they are those of channels over all samples, [K].
struct NormActAttributes {
  std::string_view activation;
  int64_t bias, residual, groups, by_sample;
};

}  // namespace
}  // namespace jax_convbatch

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(
    jax_convbatch::NormActAttributes,
    StructMember<std::string_view>("activation"), StructMember<int64_t>("bias"),
    StructMember<int64_t>("residual"), StructMember<int64_t>("groups"),
    StructMember<int64_t>("by_sample"));

namespace jax_convbatch {
namespace {

int64_t Count(const ffi::AnyBuffer& buffer) {
  return static_cast<int64_t>(buffer.element_count());
}

// What both handlers check of a call.
struct Checked {
  hopper::Type type;
  Activation activation;
  bool by_sample;
  const float *scale, *shift;
  int multiprocessors;
};

// An array of a call: of the operands' dtype, or in f32.
struct Sized {
  const char* name;
  const ffi::AnyBuffer& buffer;
  int64_t count;
};

template <typename Where>
ffi::Error Wrong(const char* what, Where&& where) {
  return ffi::Error::InvalidArgument(
      std::string("jax_convbatch: size or dtype of ") + what + " in " +
      where());
}

template <typename Where>
ffi::Error Check(std::initializer_list<Sized> arrays,
                 const ffi::AnyBuffer& scale, const ffi::AnyBuffer& shift,
                 const ConvGeometry& g, const NormActAttributes& a,
                 Where&& where, Checked* checked) {
  const ffi::DataType dtype = arrays.begin()->buffer.element_type();
  const auto type = HopperType(dtype, /*precision=*/0);
  if (!type || *type == hopper::Type::kTf32) {
    return Wrong(arrays.begin()->name, where);
  }
  for (const Sized& array : arrays) {
    if (array.buffer.element_type() != dtype ||
        Count(array.buffer) != array.count) {
      return Wrong(array.name, where);
    }
  }
  for (const auto& [name, buffer] :
       {std::pair{"scale", &scale}, std::pair{"shift", &shift}}) {
    if (buffer->element_type() != ffi::F32 || Count(*buffer) != Count(scale) ||
        (Count(*buffer) != g.C && Count(*buffer) != g.N * g.C)) {
      return Wrong(name, where);
    }
  }
  const auto activation = ParseActivation(a.activation);
  if (!activation) return Wrong("the activation", where);
  bool hopper;
  JCB_RETURN_IF_ERROR(CheckDevice(/*any_from_8=*/false, where, &hopper));
  JCB_RETURN_IF_ERROR(ToError(DeviceAttribute(cudaDevAttrMultiProcessorCount,
                                              &checked->multiprocessors),
                              where));
  checked->type = *type;
  checked->activation = *activation;
  checked->by_sample = Count(scale) != g.C;
  checked->scale = static_cast<const float*>(scale.untyped_data());
  checked->shift = static_cast<const float*>(shift.untyped_data());
  return ffi::Error::Success();
}

// Sums and their squares (or products), and those of tiles.
struct Sums {
  ChannelSumsShape shape;
  float *first, *second, *partials;

  cudaError_t Add(Stage stage, cudaStream_t stream) const {
    return AddChannelSums(stream, shape, partials, first, second, stage);
  }
};

// Of so many channels in so many tiles of an image.
template <typename Where>
ffi::Error FindSums(const ffi::RemainingRets& results, size_t from,
                    const ConvGeometry& g, const NormActAttributes& a,
                    int64_t channels, int chunks, Where&& where, Sums* sums) {
  if (a.groups < 1 || channels % a.groups != 0 ||
      (!a.by_sample && a.groups != channels)) {
    return Wrong("the groups", where);
  }
  sums->shape =
      a.by_sample ? ChannelSumsShape{g.N, chunks, a.groups, channels / a.groups}
                  : ChannelSumsShape{1, g.N * chunks, a.groups};
  const int64_t bytes = sums->shape.samples * a.groups * int64_t{sizeof(float)};
  int64_t wanted = bytes;
  for (float** to : {&sums->first, &sums->second, &sums->partials}) {
    auto buffer = results.get<ffi::AnyBuffer>(from++);
    if (!buffer.has_value()) return buffer.error();
    if (to == &sums->partials) {
      wanted = g.N * chunks * 2 * channels * int64_t{sizeof(float)};
    }
    if (static_cast<int64_t>((**buffer).size_bytes()) < wanted) {
      return Wrong("the sums", where);
    }
    *to = static_cast<float*>((**buffer).untyped_data());
  }
  return ffi::Error::Success();
}

template <typename Where>
ffi::Error NotCovered(Where&& where) {
  return ffi::Error::InvalidArgument(
      "jax_convbatch: implicit_gemm does not cover " + where());
}

ffi::Error RunFprop(const ffi::AnyBuffer& x, const ffi::AnyBuffer& w,
                    const ffi::AnyBuffer& scale, const ffi::AnyBuffer& shift,
                    const ffi::RemainingArgs& more,
                    ffi::Result<ffi::AnyBuffer> y,
                    const ffi::RemainingRets& results, const ConvGeometry& g,
                    const NormActAttributes& a, Stage stage,
                    cudaStream_t stream) {
  auto where = [&] { return Describe("norm_act_fprop", g); };
  Checked c;
  JCB_RETURN_IF_ERROR(
      Check({{"x", x, g.x_size()}, {"w", w, g.w_size()}, {"y", *y, g.y_size()}},
            scale, shift, g, a, where, &c));
  size_t next = 0;
  const void *bias = nullptr, *residual = nullptr;
  for (const auto& [name, present, count, data] :
       {std::tuple{"bias", a.bias, g.K, &bias},
        std::tuple{"residual", a.residual, g.y_size(), &residual}}) {
    if (!present) continue;
    auto buffer = more.get<ffi::AnyBuffer>(next++);
    if (!buffer.has_value()) return buffer.error();
    if (buffer->element_type() != x.element_type() || Count(*buffer) != count) {
      return Wrong(name, where);
    }
    *data = buffer->untyped_data();
  }
  const auto plan = hopper::PlanNormAct(g, c.type, c.multiprocessors);
  if (!plan) return NotCovered(where);
  Sums sums{};
  if (a.groups) {
    JCB_RETURN_IF_ERROR(
        FindSums(results, 0, g, a, g.K, plan->chunks, where, &sums));
  }
  const hopper::NormActCall call = {g,
                                    c.type,
                                    *plan,
                                    c.activation,
                                    c.by_sample,
                                    x.untyped_data(),
                                    w.untyped_data(),
                                    c.scale,
                                    c.shift,
                                    bias,
                                    residual,
                                    y->untyped_data(),
                                    sums.partials};
  JCB_RETURN_IF_ERROR(
      ToError(hopper::NormActFprop(call, stage, stream), where));
  if (!a.groups) return ffi::Error::Success();
  return ToError(sums.Add(stage, stream), where);
}

ffi::Error RunGradient(const ffi::AnyBuffer& dy, const ffi::AnyBuffer& w,
                       const ffi::AnyBuffer& scale, const ffi::AnyBuffer& shift,
                       const ffi::RemainingArgs& more,
                       ffi::Result<ffi::AnyBuffer> gradients,
                       const ffi::RemainingRets& results, const ConvGeometry& g,
                       const NormActAttributes& a, Stage stage,
                       cudaStream_t stream) {
  auto where = [&] { return Describe("norm_act_gradient", g); };
  auto x = more.get<ffi::AnyBuffer>(0);
  if (!x.has_value()) return x.error();
  auto activated = results.get<ffi::AnyBuffer>(0);
  if (!activated.has_value()) return activated.error();
  Checked c;
  JCB_RETURN_IF_ERROR(Check({{"dy", dy, g.y_size()},
                             {"w", w, g.w_size()},
                             {"x", *x, g.x_size()},
                             {"the gradients", *gradients, g.x_size()},
                             {"the activated x", **activated, g.x_size()}},
                            scale, shift, g, a, where, &c));
  const auto plan =
      hopper::PlanNormActGradient(g, c.type, c.activation, c.multiprocessors);
  if (!plan) return NotCovered(where);
  Sums sums{};
  JCB_RETURN_IF_ERROR(
      FindSums(results, 1, g, a, g.C, plan->chunks, where, &sums));
  const hopper::NormActGradientCall call = {g,
                                            c.type,
                                            *plan,
                                            c.activation,
                                            c.by_sample,
                                            dy.untyped_data(),
                                            w.untyped_data(),
                                            x->untyped_data(),
                                            c.scale,
                                            c.shift,
                                            gradients->untyped_data(),
                                            (**activated).untyped_data(),
                                            sums.partials};
  JCB_RETURN_IF_ERROR(
      ToError(hopper::NormActGradient(call, stage, stream), where));
  return ToError(sums.Add(stage, stream), where);
}

// One of the two, and their stages.
using Runner = decltype(&RunFprop);

template <Runner kRun>
ffi::Error Execute(cudaStream_t stream, ffi::AnyBuffer x, ffi::AnyBuffer w,
                   ffi::AnyBuffer scale, ffi::AnyBuffer shift,
                   ffi::RemainingArgs more, ffi::Result<ffi::AnyBuffer> y,
                   ffi::RemainingRets results, ConvGeometry g,
                   NormActAttributes a) {
  return kRun(x, w, scale, shift, more, y, results, g, a, Stage::kLaunch,
              stream);
}

// Before the first execution and outside of captures: loads the kernels.
template <Runner kRun>
ffi::Error Initialize(ffi::AnyBuffer x, ffi::AnyBuffer w, ffi::AnyBuffer scale,
                      ffi::AnyBuffer shift, ffi::RemainingArgs more,
                      ffi::Result<ffi::AnyBuffer> y, ffi::RemainingRets results,
                      ConvGeometry g, NormActAttributes a) {
  int device;
  JCB_RETURN_IF_ERROR(
      ToError(cudaGetDevice(&device), [&] { return Describe("norm_act", g); }));
  CallKey key;
  key.Add(device).Add(g).Add(x.element_type()).Add(a.activation);
  key.Add(a.bias).Add(a.residual).Add(a.groups).Add(a.by_sample);
  using Tag = std::integral_constant<Runner, kRun>;
  return PrepareOnce<Tag>(key, [&] {
    return kRun(x, w, scale, shift, more, y, results, g, a, Stage::kPrepare,
                nullptr);
  });
}

template <typename Binding>
auto Bind(Binding&& binding) {
  return std::forward<Binding>(binding)
      .template Arg<ffi::AnyBuffer>()  // x; dy
      .template Arg<ffi::AnyBuffer>()  // w
      .template Arg<ffi::AnyBuffer>()  // scale
      .template Arg<ffi::AnyBuffer>()  // shift
      .RemainingArgs()                 // of bias, residual; x
      .template Ret<ffi::AnyBuffer>()  // y; the gradients
      .RemainingRets()                 // the activated x; sums, those of tiles
      .template Attr<ConvGeometry>("geometry")
      .template Attr<NormActAttributes>("layer");
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    NormActFpropExecute, Execute<&RunFprop>,
    Bind(ffi::Ffi::Bind().Ctx<ffi::PlatformStream<cudaStream_t>>()),
    {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER_SYMBOL(NormActFpropInitialize, Initialize<&RunFprop>,
                              Bind(ffi::Ffi::BindInitialize()));
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    NormActGradientExecute, Execute<&RunGradient>,
    Bind(ffi::Ffi::Bind().Ctx<ffi::PlatformStream<cudaStream_t>>()),
    {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER_SYMBOL(NormActGradientInitialize,
                              Initialize<&RunGradient>,
                              Bind(ffi::Ffi::BindInitialize()));

}  // namespace jax_convbatch
