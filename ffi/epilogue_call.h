// SPDX-License-Identifier: Apache-2.0
// The arguments of the handlers that form scale, bias, residual and activation.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "activation.h"
#include "ffi_checks.h"
#include "xla/ffi/api/ffi.h"

namespace jax_convbatch {

// Which operands and results there are (1 or 0), in the order of the fields.
struct EpilogueAttributes {
  std::string_view activation;
  int64_t scale, bias, residual, save_input, save_signs;
};

// Of y, as a matrix.
struct EpilogueShape {
  int64_t rows, K;

  int64_t size() const { return rows * K; }
};

}  // namespace jax_convbatch

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(
    jax_convbatch::EpilogueAttributes,
    StructMember<std::string_view>("activation"),
    StructMember<int64_t>("scale"), StructMember<int64_t>("bias"),
    StructMember<int64_t>("residual"), StructMember<int64_t>("save_input"),
    StructMember<int64_t>("save_signs"));

namespace jax_convbatch {

// z[rows, K] = scale[K] c + bias[K] + residual, y = activation(z). Null where
// there is none. c is null where the engine computes it itself.
struct EpilogueCall {
  Activation activation = Activation::kIdentity;
  const void *c = nullptr, *scale = nullptr, *bias = nullptr,
             *residual = nullptr;
  void *y = nullptr, *z = nullptr;
};

// The operands of `attributes` in order, from those after x and w, or after c;
// all of `dtype`.
inline ffi::Error DecodeOperands(const EpilogueAttributes& a,
                                 const EpilogueShape& shape,
                                 ffi::DataType dtype,
                                 const ffi::RemainingArgs& operands,
                                 EpilogueCall* call) {
  const auto activation = ParseActivation(a.activation);
  if (!activation) {
    return ffi::Error::InvalidArgument("jax_convbatch: unknown activation " +
                                       std::string(a.activation));
  }
  call->activation = *activation;
  size_t next = 0;
  auto take = [&](int64_t present, const char* name, int64_t count,
                  const void** data) {
    if (!present) return ffi::Error::Success();
    auto buffer = operands.get<ffi::AnyBuffer>(next++);
    if (!buffer.has_value()) return buffer.error();
    if (buffer->element_type() != dtype ||
        static_cast<int64_t>(buffer->element_count()) != count) {
      return ffi::Error::InvalidArgument(
          std::string("jax_convbatch: size or dtype of ") + name +
          " in a layer's epilogue");
    }
    *data = buffer->untyped_data();
    return ffi::Error::Success();
  };
  JCB_RETURN_IF_ERROR(take(a.scale, "scale", shape.K, &call->scale));
  JCB_RETURN_IF_ERROR(take(a.bias, "bias", shape.K, &call->bias));
  JCB_RETURN_IF_ERROR(
      take(a.residual, "residual", shape.size(), &call->residual));
  return ffi::Error::Success();
}

// The result at `index`, as large as z.
inline ffi::Error DecodeResult(const EpilogueShape& shape, ffi::DataType dtype,
                               const ffi::RemainingRets& results, size_t index,
                               void** data) {
  auto buffer = results.get<ffi::AnyBuffer>(index);
  if (!buffer.has_value()) return buffer.error();
  if ((**buffer).element_type() != dtype ||
      static_cast<int64_t>((**buffer).element_count()) != shape.size()) {
    return ffi::Error::InvalidArgument(
        "jax_convbatch: size or dtype of a result of a layer's epilogue");
  }
  *data = (**buffer).untyped_data();
  return ffi::Error::Success();
}

// All of a handler that is given c; its results are y and perhaps z.
inline ffi::Error DecodeEpilogue(const EpilogueAttributes& a,
                                 const EpilogueShape& shape,
                                 const ffi::AnyBuffer& c,
                                 const ffi::RemainingArgs& operands,
                                 const ffi::RemainingRets& results,
                                 EpilogueCall* call) {
  const ffi::DataType dtype = c.element_type();
  if (static_cast<int64_t>(c.element_count()) != shape.size() ||
      (dtype != ffi::F64 && dtype != ffi::F32 && dtype != ffi::F16 &&
       dtype != ffi::BF16)) {
    return ffi::Error::InvalidArgument(
        "jax_convbatch: size or dtype of a layer's convolution");
  }
  if (a.save_signs) {
    return ffi::Error::InvalidArgument(
        "jax_convbatch: one pass makes no signs of a layer's result");
  }
  call->c = c.untyped_data();
  JCB_RETURN_IF_ERROR(DecodeOperands(a, shape, dtype, operands, call));
  JCB_RETURN_IF_ERROR(DecodeResult(shape, dtype, results, 0, &call->y));
  if (!a.save_input) return ffi::Error::Success();
  return DecodeResult(shape, dtype, results, 1, &call->z);
}

template <typename Binding>
auto BindEpilogue(Binding&& binding) {
  return std::forward<Binding>(binding)
      .template Arg<ffi::AnyBuffer>()  // c
      .RemainingArgs()                 // of scale, bias, residual
      .RemainingRets()                 // y, and z where it is saved
      .template Attr<int64_t>("rows")
      .template Attr<int64_t>("K")
      .template Attr<EpilogueAttributes>("epilogue");
}

}  // namespace jax_convbatch
