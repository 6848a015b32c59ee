// Deformable convolution as matrix products over sampled columns. With one
// group:
//
//   fprop  y[n]              = sampled(x[n]) w
//   dgrad  dx[n], dcorners[n] from dy[n] w^T: scattered, and times the pixels
//   wgrad  dw                = sum over n of sampled(x[n])^T dy[n]
//
// The products are im2col_gemm's, and so is what the bits do not depend on.
#include "deform.h"

#include <type_traits>

#include "column_gemms.h"
#include "handlers.h"
#include "sampling.h"

namespace jax_convbatch {
namespace {

// The arrays of a call; null where there is none.
template <typename T>
struct Arrays {
  const T *x = nullptr, *w = nullptr, *dy = nullptr;
  Sampling<Compute<T>> at{};
  T *y = nullptr, *dx = nullptr, *dw = nullptr;
  Compute<T>* dcorners = nullptr;

  Sampling<Compute<T>> AtSample(const ConvGeometry& g, int64_t n) const {
    const int64_t first = n * g.output_pixels() * at.offset_groups * g.taps();
    return {at.cells + first, at.corners + 4 * first, at.offset_groups};
  }
};

// The workspace's pieces: columns, and for 16-bit types what has to be in f32.
// jax_convbatch/deform_plan.py counts the same.
template <typename T>
struct Pieces {
  static constexpr bool kConverts = !std::is_same_v<T, Compute<T>>;

  Pieces(const ConvGeometry& g, int64_t slice, bool reads_x, bool makes_dx,
         Workspace& workspace) {
    using A = Compute<T>;
    const int64_t x_size = slice * g.input_pixels() * g.C;
    columns = workspace.Take<A>(slice * ColumnsPerSample(g));
    if (!kConverts) return;
    y = workspace.Take<A>(slice * g.output_pixels() * g.K);
    if (reads_x) x = workspace.Take<A>(x_size);
    if (makes_dx) dx = workspace.Take<A>(x_size);
    w = workspace.Take<A>(g.w_size());
  }

  Compute<T>*columns = nullptr, *y = nullptr, *x = nullptr, *dx = nullptr,
  *w = nullptr;
};

// Where a result is formed: in place, or in `copy` to be converted.
template <typename T>
Compute<T>* Target(T* result, Compute<T>* copy) {
  if constexpr (std::is_same_v<T, Compute<T>>) {
    return result;
  } else {
    return copy;
  }
}

template <typename T>
void Store(const Compute<T>* formed, T* result, int64_t count) {
  if constexpr (!std::is_same_v<T, Compute<T>>) {
    ConvertAll(formed, result, count);
  }
}

template <typename T>
Columns<const Compute<T>> SampleSlice(const ConvGeometry& g,
                                      const Arrays<T>& arrays, int64_t first,
                                      int64_t count, const Pieces<T>& pieces) {
  const int64_t x_sample = g.input_pixels() * g.C;
  SampleColumns(
      g, arrays.AtSample(g, first), count,
      AsCompute(arrays.x + first * x_sample, pieces.x, count * x_sample),
      pieces.columns);
  return Columns<const Compute<T>>::Unrolled(g, pieces.columns);
}

template <typename T>
void Fprop(const ConvGeometry& g, int64_t slice, const Arrays<T>& arrays,
           const Pieces<T>& pieces) {
  using A = Compute<T>;
  const A* w = AsCompute(arrays.w, pieces.w, g.w_size());
  const int64_t y_sample = g.output_pixels() * g.K;
  ForEachSlice(g, slice, [&](int64_t first, int64_t count) {
    const auto columns = SampleSlice(g, arrays, first, count, pieces);
    T* y = arrays.y + first * y_sample;
    A* formed = Target(y, pieces.y);
    FpropProducts<A>(g, count, columns, w, formed);
    Store(formed, y, count * y_sample);
  });
}

template <typename T>
void Dgrad(const ConvGeometry& g, int64_t slice, const Arrays<T>& arrays,
           const Pieces<T>& pieces) {
  using A = Compute<T>;
  const A* w = AsCompute(arrays.w, pieces.w, g.w_size());
  const int64_t y_sample = g.output_pixels() * g.K;
  const int64_t x_sample = g.input_pixels() * g.C;
  const int64_t corners_sample =
      4 * g.output_pixels() * arrays.at.offset_groups * g.taps();
  ForEachSlice(g, slice, [&](int64_t first, int64_t count) {
    const Sampling<A> at = arrays.AtSample(g, first);
    DgradProducts<A>(
        g, count,
        AsCompute(arrays.dy + first * y_sample, pieces.y, count * y_sample), w,
        Columns<A>::Unrolled(g, pieces.columns));
    if (arrays.dx) {
      T* dx = arrays.dx + first * x_sample;
      A* formed = Target(dx, pieces.dx);
      ScatterColumns<A>(g, at, count, pieces.columns, formed);
      Store(formed, dx, count * x_sample);
    }
    if (arrays.dcorners) {
      CornerGrads<A>(
          g, at, count, pieces.columns,
          AsCompute(arrays.x + first * x_sample, pieces.x, count * x_sample),
          arrays.dcorners + first * corners_sample);
    }
  });
}

template <typename T>
void Wgrad(const ConvGeometry& g, int64_t slice, const Arrays<T>& arrays,
           const Pieces<T>& pieces) {
  using A = Compute<T>;
  const int64_t y_sample = g.output_pixels() * g.K;
  A* sum = Target(arrays.dw, pieces.w);
  ForEachSlice(g, slice, [&](int64_t first, int64_t count) {
    const auto columns = SampleSlice(g, arrays, first, count, pieces);
    const A* dy =
        AsCompute(arrays.dy + first * y_sample, pieces.y, count * y_sample);
    WgradProducts<A>(g, first, count, columns, dy, sum);
  });
  Store(sum, arrays.dw, g.w_size());
}

struct Options {
  int64_t slice, offset_groups;
  bool reads_corners = true;
};

// What a sampled convolution can be: two spatial axes, no empty array (Python
// answers those), cells that fit their type.
ffi::Error CheckCall(const char* op, const ConvGeometry& g, const Options& o,
                     ffi::AnyBuffer cells, ffi::AnyBuffer corners) {
  const bool empty = g.N < 1 || g.C < 1 || g.K < 1 || g.input_pixels() < 1 ||
                     g.output_pixels() < 1 || g.taps() < 1;
  if (empty || o.slice < 1 || o.offset_groups < 1 || g.C % o.offset_groups ||
      g.D != 1 || g.T != 1 || g.O != 1 || !g.input_dilation.all(1) ||
      (g.H + 1) * (g.W + 1) > INT32_MAX) {
    return ffi::Error::InvalidArgument(
        "jax_convbatch: not a deformable convolution: " + Describe(op, g));
  }
  if (cells.element_type() != ffi::S32) {
    return ffi::Error::InvalidArgument("jax_convbatch: cells must be int32");
  }
  const int64_t entries = g.N * g.output_pixels() * o.offset_groups * g.taps();
  JCB_RETURN_IF_ERROR(CheckSize(op, g, "cells", cells, entries));
  if (!o.reads_corners) return ffi::Error::Success();
  return CheckSize(op, g, "corners", corners, 4 * entries);
}

// Checks the dtypes, carves the workspace and runs. `fill` sets the arrays.
template <typename Fill, typename Body>
ffi::Error Run(const char* op, const ConvGeometry& g, const Options& o,
               ffi::DataType dtype, ffi::AnyBuffer cells,
               ffi::AnyBuffer corners, ffi::AnyBuffer workspace, Fill fill,
               Body body) {
  JCB_RETURN_IF_ERROR(CheckCall(op, g, o, cells, corners));
  return Dispatch(op, g, dtype, [&](auto zero) {
    using T = decltype(zero);
    using A = Compute<T>;
    if (corners.element_type() !=
        (std::is_same_v<A, double> ? ffi::F64 : ffi::F32)) {
      return ffi::Error::InvalidArgument(
          "jax_convbatch: corners must have the accumulator's dtype");
    }
    Arrays<T> arrays;
    arrays.at = {Data<int32_t>(cells), Data<A>(corners), o.offset_groups};
    fill(arrays);
    const Stopwatch watch(&handlers_time);
    Workspace rest(workspace);
    const int64_t slice = std::min(o.slice, g.N);
    const Pieces<T> pieces(g, slice, arrays.x, arrays.dx, rest);
    JCB_RETURN_IF_ERROR(rest.Check(op, g));
    body(slice, arrays, pieces);
    return ffi::Error::Success();
  });
}

ffi::Error FpropImpl(ffi::AnyBuffer x, ffi::AnyBuffer cells,
                     ffi::AnyBuffer corners, ffi::AnyBuffer w,
                     ffi::Result<ffi::AnyBuffer> y,
                     ffi::Result<ffi::AnyBuffer> workspace, ConvGeometry g,
                     int64_t slice, int64_t /*precision*/,
                     int64_t offset_groups) {
  JCB_RETURN_IF_ERROR(CheckSize("fprop", g, "x", x, g.x_size()));
  JCB_RETURN_IF_ERROR(CheckSize("fprop", g, "w", w, g.w_size()));
  JCB_RETURN_IF_ERROR(CheckSize("fprop", g, "y", *y, g.y_size()));
  return Run(
      "fprop", g, {slice, offset_groups}, x.element_type(), cells, corners,
      *workspace,
      [&](auto& arrays) {
        arrays.x = static_cast<decltype(arrays.x)>(x.untyped_data());
        arrays.w = static_cast<decltype(arrays.w)>(w.untyped_data());
        arrays.y = static_cast<decltype(arrays.y)>(y->untyped_data());
      },
      [&](int64_t slice, const auto& arrays, const auto& pieces) {
        Fprop(g, slice, arrays, pieces);
      });
}

ffi::Error DgradImpl(ffi::AnyBuffer x, ffi::AnyBuffer cells,
                     ffi::AnyBuffer corners, ffi::AnyBuffer w,
                     ffi::AnyBuffer dy, ffi::Result<ffi::AnyBuffer> dx,
                     ffi::Result<ffi::AnyBuffer> dcorners,
                     ffi::Result<ffi::AnyBuffer> workspace, ConvGeometry g,
                     int64_t slice, int64_t /*precision*/,
                     int64_t offset_groups) {
  const bool wants_dx = dx->element_count() > 0;
  const bool wants_dcorners = dcorners->element_count() > 0;
  JCB_RETURN_IF_ERROR(CheckSize("dgrad", g, "w", w, g.w_size()));
  JCB_RETURN_IF_ERROR(CheckSize("dgrad", g, "dy", dy, g.y_size()));
  if (wants_dx) {
    JCB_RETURN_IF_ERROR(CheckSize("dgrad", g, "dx", *dx, g.x_size()));
  }
  if (wants_dcorners) {
    JCB_RETURN_IF_ERROR(CheckSize("dgrad", g, "x", x, g.x_size()));
    JCB_RETURN_IF_ERROR(
        CheckSize("dgrad", g, "dcorners", *dcorners,
                  4 * static_cast<int64_t>(cells.element_count())));
  }
  return Run(
      "dgrad", g, {slice, offset_groups, wants_dx}, dy.element_type(), cells,
      corners, *workspace,
      [&](auto& arrays) {
        arrays.w = static_cast<decltype(arrays.w)>(w.untyped_data());
        arrays.dy = static_cast<decltype(arrays.dy)>(dy.untyped_data());
        if (wants_dx) {
          arrays.dx = static_cast<decltype(arrays.dx)>(dx->untyped_data());
        }
        if (wants_dcorners) {
          arrays.x = static_cast<decltype(arrays.x)>(x.untyped_data());
          arrays.dcorners =
              static_cast<decltype(arrays.dcorners)>(dcorners->untyped_data());
        }
      },
      [&](int64_t slice, const auto& arrays, const auto& pieces) {
        Dgrad(g, slice, arrays, pieces);
      });
}

ffi::Error WgradImpl(ffi::AnyBuffer x, ffi::AnyBuffer cells,
                     ffi::AnyBuffer corners, ffi::AnyBuffer dy,
                     ffi::Result<ffi::AnyBuffer> dw,
                     ffi::Result<ffi::AnyBuffer> workspace, ConvGeometry g,
                     int64_t slice, int64_t /*precision*/,
                     int64_t offset_groups) {
  JCB_RETURN_IF_ERROR(CheckSize("wgrad", g, "x", x, g.x_size()));
  JCB_RETURN_IF_ERROR(CheckSize("wgrad", g, "dy", dy, g.y_size()));
  JCB_RETURN_IF_ERROR(CheckSize("wgrad", g, "dw", *dw, g.w_size()));
  return Run(
      "wgrad", g, {slice, offset_groups}, x.element_type(), cells, corners,
      *workspace,
      [&](auto& arrays) {
        arrays.x = static_cast<decltype(arrays.x)>(x.untyped_data());
        arrays.dy = static_cast<decltype(arrays.dy)>(dy.untyped_data());
        arrays.dw = static_cast<decltype(arrays.dw)>(dw->untyped_data());
      },
      [&](int64_t slice, const auto& arrays, const auto& pieces) {
        Wgrad(g, slice, arrays, pieces);
      });
}

// After the arrays.
template <typename Arrays>
auto WithAttributes(Arrays arrays) {
  return std::move(arrays)
      .template Ret<ffi::AnyBuffer>(/*workspace*/)
      .template Attr<ConvGeometry>("geometry")
      .template Attr<int64_t>("slice")
      .template Attr<int64_t>("precision")
      .template Attr<int64_t>("offset_groups");
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(DeformFpropCpu, FpropImpl,
                              WithAttributes(ffi::Ffi::Bind()
                                                 .Arg<ffi::AnyBuffer>(/*x*/)
                                                 .Arg<ffi::AnyBuffer>(/*cells*/)
                                                 .Arg<ffi::AnyBuffer>(
                                                     /*corners*/)
                                                 .Arg<ffi::AnyBuffer>(/*w*/)
                                                 .Ret<ffi::AnyBuffer>(/*y*/)));
XLA_FFI_DEFINE_HANDLER_SYMBOL(DeformDgradCpu, DgradImpl,
                              WithAttributes(ffi::Ffi::Bind()
                                                 .Arg<ffi::AnyBuffer>(/*x*/)
                                                 .Arg<ffi::AnyBuffer>(/*cells*/)
                                                 .Arg<ffi::AnyBuffer>(
                                                     /*corners*/)
                                                 .Arg<ffi::AnyBuffer>(/*w*/)
                                                 .Arg<ffi::AnyBuffer>(/*dy*/)
                                                 .Ret<ffi::AnyBuffer>(/*dx*/)
                                                 .Ret<ffi::AnyBuffer>(
                                                     /*dcorners*/)));
XLA_FFI_DEFINE_HANDLER_SYMBOL(DeformWgradCpu, WgradImpl,
                              WithAttributes(ffi::Ffi::Bind()
                                                 .Arg<ffi::AnyBuffer>(/*x*/)
                                                 .Arg<ffi::AnyBuffer>(/*cells*/)
                                                 .Arg<ffi::AnyBuffer>(
                                                     /*corners*/)
                                                 .Arg<ffi::AnyBuffer>(/*dy*/)
                                                 .Ret<ffi::AnyBuffer>(/*dw*/)));

}  // namespace jax_convbatch
