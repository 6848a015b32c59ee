// SPDX-License-Identifier: Apache-2.0
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
#include "deform_call.h"
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
// jax_convbatch/_deform/plan.py counts the same.
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

// Carves the workspace and runs. `fill` sets the arrays.
template <typename Fill, typename Body>
ffi::Error Run(const char* op, const ConvGeometry& g, const DeformOptions& o,
               ffi::DataType dtype, ffi::AnyBuffer cells,
               ffi::AnyBuffer corners, ffi::AnyBuffer workspace, Fill fill,
               Body body) {
  return Dispatch(op, g, dtype, [&](auto zero) {
    using T = decltype(zero);
    using A = Compute<T>;
    Arrays<T> arrays;
    arrays.at = {Data<int32_t>(cells), Data<A>(corners), o.offset_groups};
    fill(arrays);
    const Stopwatch watch(&handlers_time);
    AskForHugePages({workspace});
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
                     int64_t slice, int64_t precision, int64_t offset_groups) {
  const DeformOptions options{slice, precision, offset_groups};
  JCB_RETURN_IF_ERROR(CheckDeformFprop(g, options, x, cells, corners, w, *y));
  AskForHugePages({*y});
  return Run(
      "fprop", g, options, x.element_type(), cells, corners, *workspace,
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
                     int64_t slice, int64_t precision, int64_t offset_groups) {
  const DeformOptions options{slice, precision, offset_groups};
  JCB_RETURN_IF_ERROR(
      CheckDeformDgrad(g, options, x, cells, corners, w, dy, *dx, *dcorners));
  AskForHugePages({*dx, *dcorners});
  return Run(
      "dgrad", g, options, dy.element_type(), cells, corners, *workspace,
      [&](auto& arrays) {
        arrays.w = static_cast<decltype(arrays.w)>(w.untyped_data());
        arrays.dy = static_cast<decltype(arrays.dy)>(dy.untyped_data());
        if (dx->element_count() > 0) {
          arrays.dx = static_cast<decltype(arrays.dx)>(dx->untyped_data());
        }
        if (dcorners->element_count() > 0) {
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
                     int64_t slice, int64_t precision, int64_t offset_groups) {
  const DeformOptions options{slice, precision, offset_groups};
  JCB_RETURN_IF_ERROR(CheckDeformWgrad(g, options, x, cells, corners, dy, *dw));
  return Run(
      "wgrad", g, options, x.element_type(), cells, corners, *workspace,
      [&](auto& arrays) {
        arrays.x = static_cast<decltype(arrays.x)>(x.untyped_data());
        arrays.dy = static_cast<decltype(arrays.dy)>(dy.untyped_data());
        arrays.dw = static_cast<decltype(arrays.dw)>(dw->untyped_data());
      },
      [&](int64_t slice, const auto& arrays, const auto& pieces) {
        Wgrad(g, slice, arrays, pieces);
      });
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(DeformFpropCpu, FpropImpl,
                              BindDeformFprop(ffi::Ffi::Bind()));
XLA_FFI_DEFINE_HANDLER_SYMBOL(DeformDgradCpu, DgradImpl,
                              BindDeformDgrad(ffi::Ffi::Bind()));
XLA_FFI_DEFINE_HANDLER_SYMBOL(DeformWgradCpu, WgradImpl,
                              BindDeformWgrad(ffi::Ffi::Bind()));

}  // namespace jax_convbatch
