// SPDX-License-Identifier: Apache-2.0
// Convolution as one matrix product whose left operand, the columns, is never
// in memory. See docs/contributing/cpu.md.
#include "implicit_gemm.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "act_loops.h"
#include "epilogue_call.h"
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

ffi::Error FpropImpl(ffi::AnyBuffer x, ffi::AnyBuffer w,
                     ffi::Result<ffi::AnyBuffer> y,
                     ffi::Result<ffi::AnyBuffer> /*workspace*/, ConvGeometry g,
                     int64_t /*slice*/, int64_t /*precision*/) {
  JCB_RETURN_IF_ERROR(CheckRoles("fprop", g, {"x", x, g.x_size()},
                                 {"w", w, g.w_size()}, {"y", *y, g.y_size()},
                                 /*may_widen=*/true));
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
      return ffi::Error::Success();
    });
  });
}

// scale, bias, residual and activation of elements of type T.
template <typename T>
class LayerEpilogue : public RowEpilogue {
 public:
  LayerEpilogue(const EpilogueCall& call, int64_t K) : call_(call), K_(K) {
    if (call.scale) scale_ = Widened(call.scale, K);
    if (call.bias) bias_ = Widened(call.bias, K);
  }

  void Apply(int64_t place, int64_t channel, int64_t count,
             void* sums) const override {
    for (int64_t done = 0; done < count; done += kTileElements) {
      Tile(place * K_ + channel + done, channel + done, 1,
           std::min(kTileElements, count - done),
           static_cast<Compute<T>*>(sums) + done);
    }
  }

  void ApplyAll(int64_t place, int64_t places, void* sums) const override {
    Compute<T>* z = static_cast<Compute<T>*>(sums);
    const int64_t most = kTileElements / K_;
    for (int64_t i = 0; most > 0 && i < places; i += most) {
      Tile((place + i) * K_, 0, std::min(most, places - i), K_, z + i * K_);
    }
    for (int64_t i = 0; most == 0 && i < places; ++i) {
      Apply(place + i, 0, K_, z + i * K_);
    }
  }

 private:
  // `rows` rows of `count` channels from `channel` on, which lie at element
  // `at` of y; at most kTileElements, and of whole places where rows > 1.
  void Tile(int64_t at, int64_t channel, int64_t rows, int64_t count,
            Compute<T>* z) const {
    const int64_t all = rows * count;
    Compute<T> residual[kTileElements];
    if (call_.residual) {
      const T* from = static_cast<const T*>(call_.residual) + at;
      for (int64_t i = 0; i < all; ++i) residual[i] = ToCompute(from[i]);
    }
    ScaleAndAdd(call_.scale ? &scale_[channel] : nullptr,
                call_.bias ? &bias_[channel] : nullptr,
                call_.residual ? residual : nullptr, z, rows, count);
    if (call_.z) {
      T* to = static_cast<T*>(call_.z) + at;
      for (int64_t i = 0; i < all; ++i) to[i] = FromCompute<T>(z[i]);
    }
    ActivateTile(call_.activation, z, z, all);
  }

  static std::vector<Compute<T>> Widened(const void* data, int64_t count) {
    const T* from = static_cast<const T*>(data);
    std::vector<Compute<T>> wide(count);
    for (int64_t i = 0; i < count; ++i) wide[i] = ToCompute(from[i]);
    return wide;
  }

  const EpilogueCall& call_;
  const int64_t K_;
  std::vector<Compute<T>> scale_, bias_;
};

ffi::Error FpropActImpl(ffi::AnyBuffer x, ffi::AnyBuffer w,
                        ffi::RemainingArgs operands,
                        ffi::Result<ffi::AnyBuffer> y,
                        ffi::Result<ffi::AnyBuffer> /*workspace*/,
                        ffi::RemainingRets results, ConvGeometry g,
                        int64_t /*slice*/, int64_t /*precision*/,
                        const EpilogueAttributes& attributes) {
  JCB_RETURN_IF_ERROR(CheckRoles("fprop_act", g, {"x", x, g.x_size()},
                                 {"w", w, g.w_size()}, {"y", *y, g.y_size()}));
  const EpilogueShape shape{g.N * g.output_pixels(), g.K};
  const ffi::DataType dtype = x.element_type();
  if (attributes.save_signs) {
    return ffi::Error::InvalidArgument(
        "jax_convbatch: signs are not made on the CPU, in " +
        Describe("fprop_act", g));
  }
  EpilogueCall call;
  JCB_RETURN_IF_ERROR(
      DecodeOperands(attributes, shape, dtype, operands, &call));
  if (attributes.save_input) {
    JCB_RETURN_IF_ERROR(DecodeResult(shape, dtype, results, 0, &call.z));
  }
  return Dispatch("fprop_act", g, dtype, [&](auto zero) {
    using T = decltype(zero);
    const LayerEpilogue<T> epilogue(call, g.K);
    const Stopwatch watch(&handlers_time);
    AskForHugePages({*y});
    if (call.z) AskForHugePages(call.z, y->size_bytes());
    Forward forward{g,
                    false,
                    x.untyped_data(),
                    w.untyped_data(),
                    kElement<T>,
                    y->untyped_data(),
                    kElement<T>};
    forward.epilogue = &epilogue;
    if (y->element_count()) forward.Run<Compute<T>>();
    return ffi::Error::Success();
  });
}

auto ActBinding() {
  return ffi::Ffi::Bind()
      .Arg<ffi::AnyBuffer>()  // x
      .Arg<ffi::AnyBuffer>()  // w
      .RemainingArgs()        // of scale, bias, residual
      .Ret<ffi::AnyBuffer>()  // y
      .Ret<ffi::AnyBuffer>()  // workspace
      .RemainingRets()        // z where it is saved
      .Attr<ConvGeometry>("geometry")
      .Attr<int64_t>("slice")
      .Attr<int64_t>("precision")
      .Attr<EpilogueAttributes>("epilogue");
}

ffi::Error DgradImpl(ffi::AnyBuffer dy, ffi::AnyBuffer w,
                     ffi::Result<ffi::AnyBuffer> dx,
                     ffi::Result<ffi::AnyBuffer> /*workspace*/, ConvGeometry g,
                     int64_t /*slice*/, int64_t /*precision*/) {
  JCB_RETURN_IF_ERROR(CheckRoles("dgrad", g, {"dy", dy, g.y_size()},
                                 {"w", w, g.w_size()},
                                 {"dx", *dx, g.x_size()}));
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
      return ffi::Error::Success();
    });
  });
}

ffi::Error WgradImpl(ffi::AnyBuffer x, ffi::AnyBuffer dy,
                     ffi::Result<ffi::AnyBuffer> dw,
                     ffi::Result<ffi::AnyBuffer> workspace, ConvGeometry g,
                     int64_t slice, int64_t /*precision*/) {
  JCB_RETURN_IF_ERROR(CheckRoles("wgrad", g, {"x", x, g.x_size()},
                                 {"dy", dy, g.y_size()},
                                 {"dw", *dw, g.w_size()}));
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
      AskForHugePages({*workspace});
      Wgrad{g,
            x.untyped_data(),
            dy.untyped_data(),
            dw->untyped_data(),
            kElement<T>,
            slice,
            sums}
          .Run<Compute<T>>();
      return ffi::Error::Success();
    });
  });
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(ImplicitFpropCpu, FpropImpl, ConvBinding());
XLA_FFI_DEFINE_HANDLER_SYMBOL(ImplicitFpropActCpu, FpropActImpl, ActBinding());
XLA_FFI_DEFINE_HANDLER_SYMBOL(ImplicitDgradCpu, DgradImpl, ConvBinding());
XLA_FFI_DEFINE_HANDLER_SYMBOL(ImplicitWgradCpu, WgradImpl, ConvBinding());

}  // namespace jax_convbatch
