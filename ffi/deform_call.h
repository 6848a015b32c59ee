// SPDX-License-Identifier: Apache-2.0
// The arguments of the handlers of deformable convolution, and their checks.
#pragma once

#include <cstdint>
#include <utility>

#include "ffi_checks.h"
#include "xla/ffi/api/ffi.h"

namespace jax_convbatch {

// The attributes besides the geometry.
struct DeformOptions {
  int64_t slice, precision, offset_groups;
};

// What a sampled convolution can be: two spatial axes, no empty array (Python
// answers those), cells that fit their type.
inline ffi::Error CheckSampled(const char* op, const ConvGeometry& g,
                               const DeformOptions& o) {
  const bool empty = g.N < 1 || g.C < 1 || g.K < 1 || g.input_pixels() < 1 ||
                     g.output_pixels() < 1 || g.taps() < 1;
  if (empty || o.slice < 1 || o.offset_groups < 1 || g.C % o.offset_groups ||
      g.D != 1 || g.T != 1 || g.O != 1 || !g.input_dilation.all(1) ||
      (g.H + 1) * (g.W + 1) > INT32_MAX) {
    return ffi::Error::InvalidArgument(
        "jax_convbatch: not a deformable convolution: " + Describe(op, g));
  }
  return ffi::Error::Success();
}

inline int64_t EntriesOf(const ConvGeometry& g, const DeformOptions& o) {
  return g.N * g.output_pixels() * o.offset_groups * g.taps();
}

// The same, and cells and corners: of the accumulator's type, [0] where they
// are not read.
inline ffi::Error CheckSampling(const char* op, const ConvGeometry& g,
                                const DeformOptions& o, ffi::DataType dtype,
                                ffi::AnyBuffer cells, ffi::AnyBuffer corners,
                                bool reads_corners = true) {
  JCB_RETURN_IF_ERROR(CheckSampled(op, g, o));
  if (cells.element_type() != ffi::S32) {
    return ffi::Error::InvalidArgument("jax_convbatch: cells must be int32");
  }
  if (corners.element_type() != (dtype == ffi::F64 ? ffi::F64 : ffi::F32)) {
    return ffi::Error::InvalidArgument(
        "jax_convbatch: corners must have the accumulator's dtype");
  }
  const int64_t entries = EntriesOf(g, o);
  JCB_RETURN_IF_ERROR(CheckSize(op, g, "cells", cells, entries));
  if (!reads_corners) return ffi::Error::Success();
  return CheckSize(op, g, "corners", corners, 4 * entries);
}

inline ffi::Error CheckDeformFprop(const ConvGeometry& g,
                                   const DeformOptions& o, ffi::AnyBuffer x,
                                   ffi::AnyBuffer cells, ffi::AnyBuffer corners,
                                   ffi::AnyBuffer w, ffi::AnyBuffer y) {
  JCB_RETURN_IF_ERROR(CheckSize("fprop", g, "x", x, g.x_size()));
  JCB_RETURN_IF_ERROR(CheckSize("fprop", g, "w", w, g.w_size()));
  JCB_RETURN_IF_ERROR(CheckSize("fprop", g, "y", y, g.y_size()));
  return CheckSampling("fprop", g, o, x.element_type(), cells, corners);
}

// Of dx and dcorners one may be empty, and then what it alone would need.
inline ffi::Error CheckDeformDgrad(const ConvGeometry& g,
                                   const DeformOptions& o, ffi::AnyBuffer x,
                                   ffi::AnyBuffer cells, ffi::AnyBuffer corners,
                                   ffi::AnyBuffer w, ffi::AnyBuffer dy,
                                   ffi::AnyBuffer dx, ffi::AnyBuffer dcorners) {
  const bool wants_dx = dx.element_count() > 0;
  JCB_RETURN_IF_ERROR(CheckSize("dgrad", g, "w", w, g.w_size()));
  JCB_RETURN_IF_ERROR(CheckSize("dgrad", g, "dy", dy, g.y_size()));
  if (wants_dx) {
    JCB_RETURN_IF_ERROR(CheckSize("dgrad", g, "dx", dx, g.x_size()));
  }
  if (dcorners.element_count() > 0) {
    JCB_RETURN_IF_ERROR(CheckSize("dgrad", g, "x", x, g.x_size()));
    JCB_RETURN_IF_ERROR(
        CheckSize("dgrad", g, "dcorners", dcorners,
                  4 * static_cast<int64_t>(cells.element_count())));
  }
  return CheckSampling("dgrad", g, o, dy.element_type(), cells, corners,
                       wants_dx);
}

inline ffi::Error CheckDeformWgrad(const ConvGeometry& g,
                                   const DeformOptions& o, ffi::AnyBuffer x,
                                   ffi::AnyBuffer cells, ffi::AnyBuffer corners,
                                   ffi::AnyBuffer dy, ffi::AnyBuffer dw) {
  JCB_RETURN_IF_ERROR(CheckSize("wgrad", g, "x", x, g.x_size()));
  JCB_RETURN_IF_ERROR(CheckSize("wgrad", g, "dy", dy, g.y_size()));
  JCB_RETURN_IF_ERROR(CheckSize("wgrad", g, "dw", dw, g.w_size()));
  return CheckSampling("wgrad", g, o, x.element_type(), cells, corners);
}

// What follows the array results.
template <typename Binding>
auto DeformAttributes(Binding&& binding) {
  return std::forward<Binding>(binding)
      .template Ret<ffi::AnyBuffer>(/*workspace*/)
      .template Attr<ConvGeometry>("geometry")
      .template Attr<int64_t>("slice")
      .template Attr<int64_t>("precision")
      .template Attr<int64_t>("offset_groups");
}

template <typename Binding>
auto BindDeformFprop(Binding&& binding) {
  return DeformAttributes(std::forward<Binding>(binding)
                              .template Arg<ffi::AnyBuffer>(/*x*/)
                              .template Arg<ffi::AnyBuffer>(/*cells*/)
                              .template Arg<ffi::AnyBuffer>(/*corners*/)
                              .template Arg<ffi::AnyBuffer>(/*w*/)
                              .template Ret<ffi::AnyBuffer>(/*y*/));
}

template <typename Binding>
auto BindDeformDgrad(Binding&& binding) {
  return DeformAttributes(std::forward<Binding>(binding)
                              .template Arg<ffi::AnyBuffer>(/*x*/)
                              .template Arg<ffi::AnyBuffer>(/*cells*/)
                              .template Arg<ffi::AnyBuffer>(/*corners*/)
                              .template Arg<ffi::AnyBuffer>(/*w*/)
                              .template Arg<ffi::AnyBuffer>(/*dy*/)
                              .template Ret<ffi::AnyBuffer>(/*dx*/)
                              .template Ret<ffi::AnyBuffer>(/*dcorners*/));
}

template <typename Binding>
auto BindDeformWgrad(Binding&& binding) {
  return DeformAttributes(std::forward<Binding>(binding)
                              .template Arg<ffi::AnyBuffer>(/*x*/)
                              .template Arg<ffi::AnyBuffer>(/*cells*/)
                              .template Arg<ffi::AnyBuffer>(/*corners*/)
                              .template Arg<ffi::AnyBuffer>(/*dy*/)
                              .template Ret<ffi::AnyBuffer>(/*dw*/));
}

}  // namespace jax_convbatch
