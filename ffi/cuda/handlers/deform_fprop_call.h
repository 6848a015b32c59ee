// SPDX-License-Identifier: Apache-2.0
// The arguments of deformable fprop on CUDA.
#pragma once

#include <cstdint>
#include <utility>

#include "cuda/common/positions.h"
#include "deform_call.h"

namespace jax_convbatch {

// Either cells and corners or offset has elements; mask and bias may have none.
// offset: [N, P, Q, offset_groups, R, S, 2], mask without the 2, of the type of
// x or f32; bias: [K], of the type of x. positions.h.
struct DeformFpropBuffers {
  ffi::AnyBuffer x, cells, corners, offset, mask, w, bias, y;

  bool has_offset() const { return offset.element_count() > 0; }
  const void* bias_data() const {
    return bias.element_count() > 0 ? bias.untyped_data() : nullptr;
  }

  // Of the samples from the one whose first entry is number `first`.
  Positions At(int64_t first) const {
    const ffi::DataType dtype = x.element_type();
    auto from = [&](const ffi::AnyBuffer& buffer, int64_t each) -> const void* {
      if (buffer.element_count() == 0) return nullptr;
      return static_cast<const char*>(buffer.untyped_data()) +
             first * each * ffi::ByteWidth(buffer.element_type());
    };
    Positions at;
    if (has_offset()) {
      at.offset = from(offset, 2);
      at.mask = from(mask, 1);
      at.narrow_offset = offset.element_type() == dtype;
      at.narrow_mask = mask.element_type() == dtype;
    } else {
      at.cells = static_cast<const int32_t*>(from(cells, 1));
      at.corners = from(corners, 4);
    }
    return at;
  }
};

inline ffi::Error CheckDeformFpropCall(const ConvGeometry& g,
                                       const DeformOptions& o,
                                       const DeformFpropBuffers& b) {
  const ffi::DataType dtype = b.x.element_type();
  if (b.bias.element_count() > 0) {
    JCB_RETURN_IF_ERROR(CheckSize("fprop", g, "bias", b.bias, g.K));
  }
  if (b.bias.element_type() != dtype) {
    return ffi::Error::InvalidArgument(
        "jax_convbatch: bias must have the dtype of x");
  }
  if (!b.has_offset()) {
    return CheckDeformFprop(g, o, b.x, b.cells, b.corners, b.w, b.y);
  }
  JCB_RETURN_IF_ERROR(CheckSampled("fprop", g, o));
  for (const ffi::AnyBuffer& a : {b.offset, b.mask}) {
    if (a.element_type() != dtype && a.element_type() != ffi::F32) {
      return ffi::Error::InvalidArgument(
          "jax_convbatch: offset and mask must have the dtype of x or f32");
    }
  }
  const int64_t entries = EntriesOf(g, o);
  JCB_RETURN_IF_ERROR(CheckSize("fprop", g, "x", b.x, g.x_size()));
  JCB_RETURN_IF_ERROR(CheckSize("fprop", g, "w", b.w, g.w_size()));
  JCB_RETURN_IF_ERROR(CheckSize("fprop", g, "y", b.y, g.y_size()));
  JCB_RETURN_IF_ERROR(CheckSize("fprop", g, "offset", b.offset, 2 * entries));
  if (b.mask.element_count() == 0) return ffi::Error::Success();
  return CheckSize("fprop", g, "mask", b.mask, entries);
}

// Arguments and y.
template <typename Binding>
auto BindDeformFpropArrays(Binding&& binding) {
  return std::forward<Binding>(binding)
      .template Arg<ffi::AnyBuffer>(/*x*/)
      .template Arg<ffi::AnyBuffer>(/*cells*/)
      .template Arg<ffi::AnyBuffer>(/*corners*/)
      .template Arg<ffi::AnyBuffer>(/*offset*/)
      .template Arg<ffi::AnyBuffer>(/*mask*/)
      .template Arg<ffi::AnyBuffer>(/*w*/)
      .template Arg<ffi::AnyBuffer>(/*bias*/)
      .template Ret<ffi::AnyBuffer>(/*y*/);
}

}  // namespace jax_convbatch
