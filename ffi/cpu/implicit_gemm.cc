// Convolution as one matrix product whose left operand, the columns, is never
// in memory. See docs/cpu.md.
#include "implicit_gemm.h"

#include <algorithm>
#include <type_traits>

#include "handlers.h"
#include "implicit/forward.h"
#include "implicit/wgrad.h"
#include "stopwatch.h"

namespace jax_convbatch {
namespace {

template <typename T>
constexpr Element kElement = std::is_same_v<T, double>     ? Element::kF64
                             : std::is_same_v<T, float>    ? Element::kF32
                             : std::is_same_v<T, BFloat16> ? Element::kBF16
                                                           : Element::kF16;

// Zeros where nothing is summed, otherwise run().
template <typename Run>
ffi::Error RunOrZero(bool empty_sum, ffi::AnyBuffer result, Run run) {
  if (result.element_count() == 0) return ffi::Error::Success();
  if (empty_sum) {
    std::fill_n(static_cast<char*>(result.untyped_data()), result.size_bytes(),
                0);
    return ffi::Error::Success();
  }
  const Stopwatch watch(&handlers_time);
  run();
  return ffi::Error::Success();
}

ffi::Error FpropImpl(ffi::AnyBuffer x, ffi::AnyBuffer w,
                     ffi::Result<ffi::AnyBuffer> y,
                     ffi::Result<ffi::AnyBuffer> /*workspace*/, ConvGeometry g,
                     int64_t /*slice*/, int64_t /*precision*/) {
  JCB_RETURN_IF_ERROR(CheckSize("fprop", g, "x", x, g.x_size()));
  JCB_RETURN_IF_ERROR(CheckSize("fprop", g, "w", w, g.w_size()));
  JCB_RETURN_IF_ERROR(CheckSize("fprop", g, "y", *y, g.y_size()));
  return Dispatch("fprop", g, x.element_type(), [&](auto zero) {
    using T = decltype(zero);
    const Element out = y->element_type() == x.element_type()
                            ? kElement<T>
                            : kElement<Compute<T>>;
    return RunOrZero(g.column_size() == 0, *y, [&] {
      Forward{g,
              false,
              x.untyped_data(),
              w.untyped_data(),
              kElement<T>,
              y->untyped_data(),
              out}
          .Run<Compute<T>>();
    });
  });
}

ffi::Error DgradImpl(ffi::AnyBuffer dy, ffi::AnyBuffer w,
                     ffi::Result<ffi::AnyBuffer> dx,
                     ffi::Result<ffi::AnyBuffer> /*workspace*/, ConvGeometry g,
                     int64_t /*slice*/, int64_t /*precision*/) {
  JCB_RETURN_IF_ERROR(CheckSize("dgrad", g, "dy", dy, g.y_size()));
  JCB_RETURN_IF_ERROR(CheckSize("dgrad", g, "w", w, g.w_size()));
  JCB_RETURN_IF_ERROR(CheckSize("dgrad", g, "dx", *dx, g.x_size()));
  const bool empty_sum = g.K == 0 || g.taps() == 0 || g.output_pixels() == 0;
  return Dispatch("dgrad", g, dy.element_type(), [&](auto zero) {
    using T = decltype(zero);
    return RunOrZero(empty_sum, *dx, [&] {
      Forward{g,
              true,
              dy.untyped_data(),
              w.untyped_data(),
              kElement<T>,
              dx->untyped_data(),
              kElement<T>}
          .Run<Compute<T>>();
    });
  });
}

ffi::Error WgradImpl(ffi::AnyBuffer x, ffi::AnyBuffer dy,
                     ffi::Result<ffi::AnyBuffer> dw,
                     ffi::Result<ffi::AnyBuffer> workspace, ConvGeometry g,
                     int64_t slice, int64_t /*precision*/) {
  JCB_RETURN_IF_ERROR(CheckSize("wgrad", g, "x", x, g.x_size()));
  JCB_RETURN_IF_ERROR(CheckSize("wgrad", g, "dy", dy, g.y_size()));
  JCB_RETURN_IF_ERROR(CheckSize("wgrad", g, "dw", *dw, g.w_size()));
  if (slice < 1) {
    return ffi::Error::InvalidArgument("jax_convbatch: slice must be positive");
  }
  const bool empty_sum = g.N == 0 || g.output_pixels() == 0;
  return Dispatch("wgrad", g, x.element_type(), [&](auto zero) {
    using T = decltype(zero);
    // The slice is the number of parts. Without a workspace, one after the
    // other.
    Workspace rest(*workspace);
    void* sums = rest.Take<Compute<T>>(slice * g.w_size());
    if (workspace->size_bytes() == 0) {
      sums = nullptr;
    } else {
      JCB_RETURN_IF_ERROR(rest.Check("wgrad", g));
    }
    return RunOrZero(empty_sum, *dw, [&] {
      Wgrad{g,
            x.untyped_data(),
            dy.untyped_data(),
            dw->untyped_data(),
            kElement<T>,
            slice,
            sums}
          .Run<Compute<T>>();
    });
  });
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(ImplicitFpropCpu, FpropImpl, ConvBinding());
XLA_FFI_DEFINE_HANDLER_SYMBOL(ImplicitDgradCpu, DgradImpl, ConvBinding());
XLA_FFI_DEFINE_HANDLER_SYMBOL(ImplicitWgradCpu, WgradImpl, ConvBinding());

}  // namespace jax_convbatch
