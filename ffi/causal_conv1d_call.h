// SPDX-License-Identifier: Apache-2.0
// The arguments of the handlers of the short causal depthwise convolution along
// one axis, and their checks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include "activation.h"
#include "ffi_checks.h"
#include "xla/ffi/api/ffi.h"

namespace jax_convbatch {

// z[l] = bias + the sum over taps t of w[t] xs[l + t dilation], y =
// activation(z), where xs[state_rows + L] is x[L] after the state's rows, or
// after zeros. A term counts zero where ids[l + t dilation] is not ids[l +
// state_rows].
struct CausalConv1d {
  int64_t G;  // sets of weights, with n samples each
  int64_t n, L, C, taps, dilation;
  int64_t state_rows;  // (taps - 1) dilation, whether there is a state or not
  bool has_state, has_ids;
  Activation activation;
  ffi::DataType dtype;  // of x, y and the state

  int64_t samples() const { return G * n; }
  int64_t xs_rows() const { return state_rows + L; }
  int64_t x_size() const { return G * n * L * C; }
  int64_t w_size() const { return G * taps * C; }
  int64_t state_size() const {
    return has_state ? G * n * state_rows * C : int64_t{0};
  }
  // Of w, bias and the sums.
  ffi::DataType accumulator() const {
    return dtype == ffi::F64 ? ffi::F64 : ffi::F32;
  }
};

namespace causal_conv1d {

inline std::string ShapeText(const int64_t* sizes, size_t rank) {
  std::ostringstream out;
  out << "[";
  for (size_t i = 0; i < rank; ++i) out << (i ? ", " : "") << sizes[i];
  out << "]";
  return out.str();
}

inline ffi::Error CheckArray(const char* name, ffi::AnyBuffer buffer,
                             ffi::DataType dtype,
                             std::initializer_list<int64_t> sizes) {
  const auto found = buffer.dimensions();
  if (buffer.element_type() == dtype && found.size() == sizes.size() &&
      std::equal(sizes.begin(), sizes.end(), found.begin())) {
    return ffi::Error::Success();
  }
  std::ostringstream message;
  message << "jax_convbatch: causal_conv1d has " << name << " of shape "
          << ShapeText(found.begin(), found.size()) << " and dtype "
          << buffer.element_type() << " where "
          << ShapeText(sizes.begin(), sizes.size()) << " and " << dtype
          << " are expected";
  return ffi::Error::InvalidArgument(message.str());
}

// What does not depend on whether there are one or L positions.
inline ffi::Error DecodeWeights(ffi::AnyBuffer x, ffi::AnyBuffer w,
                                ffi::AnyBuffer bias, int64_t dilation,
                                std::string_view name, CausalConv1d* call) {
  const auto sizes = x.dimensions();
  const auto taps = w.dimensions();
  call->dtype = x.element_type();
  if (call->dtype != ffi::F64 && call->dtype != ffi::F32 &&
      call->dtype != ffi::F16 && call->dtype != ffi::BF16) {
    return ffi::Error::InvalidArgument(
        "jax_convbatch: unsupported dtype in causal_conv1d");
  }
  if (taps.size() != 3 || taps[1] < 1 || dilation < 1) {
    return ffi::Error::InvalidArgument(
        "jax_convbatch: causal_conv1d wants w[G, taps, C] of at least one tap, "
        "and a dilation of at least 1");
  }
  const auto activation = ParseActivation(name);
  if (!activation || (*activation != Activation::kIdentity &&
                      *activation != Activation::kSilu)) {
    return ffi::Error::InvalidArgument(
        "jax_convbatch: causal_conv1d has no activation " + std::string(name));
  }
  const bool one_set = sizes.size() == 2;  // and no axis for it
  call->G = one_set ? 1 : sizes[0];
  call->n = one_set ? sizes[0] : sizes[1];
  call->C = sizes[sizes.size() - 1];
  call->taps = taps[1];
  call->dilation = dilation;
  call->state_rows = (call->taps - 1) * dilation;
  call->activation = *activation;
  const ffi::DataType wide = call->accumulator();
  JCB_RETURN_IF_ERROR(CheckArray("w", w, wide, {call->G, call->taps, call->C}));
  return CheckArray("bias", bias, wide, {call->G, call->C});
}

}  // namespace causal_conv1d

// x[G, n, L, C], w[G, taps, C], bias[G, C], state[G, n, state_rows or 0, C],
// ids[G, n, state_rows + L or 0].
inline ffi::Error DecodeCausalConv1d(ffi::AnyBuffer x, ffi::AnyBuffer w,
                                     ffi::AnyBuffer bias, ffi::AnyBuffer state,
                                     ffi::AnyBuffer ids, int64_t dilation,
                                     std::string_view activation,
                                     CausalConv1d* call) {
  if (x.dimensions().size() != 4) {
    return ffi::Error::InvalidArgument(
        "jax_convbatch: causal_conv1d wants x[G, n, L, C]");
  }
  call->L = x.dimensions()[2];
  JCB_RETURN_IF_ERROR(
      causal_conv1d::DecodeWeights(x, w, bias, dilation, activation, call));
  const auto state_sizes = state.dimensions();
  const auto ids_sizes = ids.dimensions();
  call->has_state = state_sizes.size() == 4 && state_sizes[2] > 0;
  call->has_ids = ids_sizes.size() == 3 && ids_sizes[2] > 0;
  JCB_RETURN_IF_ERROR(causal_conv1d::CheckArray(
      "state", state, call->dtype,
      {call->G, call->n, call->has_state ? call->state_rows : 0, call->C}));
  return causal_conv1d::CheckArray(
      "ids", ids, ffi::S32,
      {call->G, call->n, call->has_ids ? call->xs_rows() : 0});
}

// y, dy or dx.
inline ffi::Error CheckLikeX(const char* name, ffi::AnyBuffer buffer,
                             const CausalConv1d& call) {
  return causal_conv1d::CheckArray(name, buffer, call.dtype,
                                   {call.G, call.n, call.L, call.C});
}

// What the gradient has besides the forward pass.
inline ffi::Error CheckCausalConv1dGrad(const CausalConv1d& call,
                                        ffi::AnyBuffer dy, ffi::AnyBuffer dx,
                                        ffi::AnyBuffer dw, ffi::AnyBuffer dbias,
                                        ffi::AnyBuffer dstate) {
  const ffi::DataType wide = call.accumulator();
  JCB_RETURN_IF_ERROR(CheckLikeX("dy", dy, call));
  JCB_RETURN_IF_ERROR(CheckLikeX("dx", dx, call));
  JCB_RETURN_IF_ERROR(
      causal_conv1d::CheckArray("dw", dw, wide, {call.G, call.taps, call.C}));
  JCB_RETURN_IF_ERROR(
      causal_conv1d::CheckArray("dbias", dbias, wide, {call.G, call.C}));
  return causal_conv1d::CheckArray(
      "dstate", dstate, call.dtype,
      {call.G, call.n, call.has_state ? call.state_rows : 0, call.C});
}

// One position: state[G, n, state_rows, C] and x[G, n, C] to y[G, n, C] and
// new_state, or all without G where that is 1. The call is that of a sequence
// with L = 1.
inline ffi::Error DecodeCausalConv1dUpdate(
    ffi::AnyBuffer state, ffi::AnyBuffer x, ffi::AnyBuffer w,
    ffi::AnyBuffer bias, ffi::AnyBuffer y, ffi::AnyBuffer new_state,
    int64_t dilation, std::string_view activation, CausalConv1d* call) {
  const bool one_set = x.dimensions().size() == 2;
  if (!one_set && x.dimensions().size() != 3) {
    return ffi::Error::InvalidArgument(
        "jax_convbatch: causal_conv1d's update wants x[G, n, C] or x[n, C]");
  }
  call->L = 1;
  JCB_RETURN_IF_ERROR(
      causal_conv1d::DecodeWeights(x, w, bias, dilation, activation, call));
  call->has_state = call->state_rows > 0;
  call->has_ids = false;
  const int64_t G = call->G, n = call->n, rows = call->state_rows, C = call->C;
  const auto check = [&](const char* name, ffi::AnyBuffer buffer) {
    using causal_conv1d::CheckArray;
    if (one_set) return CheckArray(name, buffer, call->dtype, {n, rows, C});
    return CheckArray(name, buffer, call->dtype, {G, n, rows, C});
  };
  JCB_RETURN_IF_ERROR(check("state", state));
  JCB_RETURN_IF_ERROR(check("new_state", new_state));
  if (one_set) return causal_conv1d::CheckArray("y", y, call->dtype, {n, C});
  return causal_conv1d::CheckArray("y", y, call->dtype, {G, n, C});
}

template <typename Binding>
auto BindCausalConv1d(Binding&& binding) {
  return std::forward<Binding>(binding)
      .template Arg<ffi::AnyBuffer>(/*x*/)
      .template Arg<ffi::AnyBuffer>(/*w*/)
      .template Arg<ffi::AnyBuffer>(/*bias*/)
      .template Arg<ffi::AnyBuffer>(/*state*/)
      .template Arg<ffi::AnyBuffer>(/*ids*/)
      .template Ret<ffi::AnyBuffer>(/*y*/)
      .template Attr<int64_t>("dilation")
      .template Attr<std::string_view>("activation");
}

template <typename Binding>
auto BindCausalConv1dGrad(Binding&& binding) {
  return std::forward<Binding>(binding)
      .template Arg<ffi::AnyBuffer>(/*x*/)
      .template Arg<ffi::AnyBuffer>(/*w*/)
      .template Arg<ffi::AnyBuffer>(/*bias*/)
      .template Arg<ffi::AnyBuffer>(/*state*/)
      .template Arg<ffi::AnyBuffer>(/*ids*/)
      .template Arg<ffi::AnyBuffer>(/*dy*/)
      .template Ret<ffi::AnyBuffer>(/*dx*/)
      .template Ret<ffi::AnyBuffer>(/*dw*/)
      .template Ret<ffi::AnyBuffer>(/*dbias*/)
      .template Ret<ffi::AnyBuffer>(/*dstate*/)
      .template Ret<ffi::AnyBuffer>(/*workspace*/)
      .template Attr<int64_t>("dilation")
      .template Attr<std::string_view>("activation");
}

template <typename Binding>
auto BindCausalConv1dUpdate(Binding&& binding) {
  return std::forward<Binding>(binding)
      .template Arg<ffi::AnyBuffer>(/*state*/)
      .template Arg<ffi::AnyBuffer>(/*x*/)
      .template Arg<ffi::AnyBuffer>(/*w*/)
      .template Arg<ffi::AnyBuffer>(/*bias*/)
      .template Ret<ffi::AnyBuffer>(/*y*/)
      .template Ret<ffi::AnyBuffer>(/*new_state*/)
      .template Attr<int64_t>("dilation")
      .template Attr<std::string_view>("activation");
}

}  // namespace jax_convbatch
