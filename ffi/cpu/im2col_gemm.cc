// Convolution as matrix products over columns, on the CPU. With one group:
//
//   fprop   y[n]  [OPQ, K]  = columns(x[n]) [OPQ, TRSC] · w [TRSC, K]
//   dgrad   dx[n]           = gather(dy[n] [OPQ, K] · w^T)
//   wgrad   dw [TRSC, K]    = sum over n of columns(x[n])^T · dy[n]
//
// and the same on the channels of each group. A slice of samples is unrolled
// at a time, by all threads; then the threads share the products of its
// samples, cut into pieces by a rule of their sizes alone. As no product spans
// samples, the bits depend neither on the slice nor, for y and dx, on the
// batch, nor on the number of threads.
#include "im2col_gemm.h"

#include <algorithm>
#include <type_traits>

#include "blas.h"
#include "blocks.h"
#include "half.h"
#include "handlers.h"
#include "im2col.h"

namespace jax_convbatch {
namespace {

// `data` in the type of the arithmetic: itself, or a converted copy in `copy`.
template <typename T>
const Compute<T>* AsCompute(const T* data, Compute<T>* copy, int64_t count) {
  if constexpr (std::is_same_v<T, Compute<T>>) {
    return data;
  } else {
    ConvertAll(data, copy, count);
    return copy;
  }
}

// The workspace's pieces; null where a geometry or dtype does without.
template <typename T>
struct Pieces {
  static constexpr bool kConverts = !std::is_same_v<T, Compute<T>>;

  Pieces(const ConvGeometry& g, int64_t slice, Workspace& workspace) {
    using A = Compute<T>;
    if (!g.is_pointwise() || kConverts) {
      columns = workspace.Take<A>(slice * ColumnsPerSample(g));
    }
    if (kConverts) {
      y = workspace.Take<A>(slice * g.output_pixels() * g.K);
      w = workspace.Take<A>(g.w_size());
    }
  }

  Compute<T>*columns = nullptr, *y = nullptr, *w = nullptr;
};

// Calls body(first, count) for each slice of the batch.
template <typename Body>
void ForEachSlice(const ConvGeometry& g, int64_t slice, Body body) {
  for (int64_t first = 0; first < g.N; first += slice) {
    body(first, std::min(slice, g.N - first));
  }
}

// The columns of a slice: x itself where the filter is pointwise. With groups a
// pointwise sample is a matrix of row length C for each group, otherwise of
// row length column_size().
template <typename T>
struct Columns {
  const Compute<T>* data;
  int64_t row, group_stride;

  const Compute<T>* at(const ConvGeometry& g, int64_t n, int64_t group) const {
    return data + n * ColumnsPerSample(g) + group * group_stride;
  }
};

template <typename T>
Columns<T> UnrollSlice(const ConvGeometry& g, int64_t samples, const T* x,
                       Compute<T>* buffer) {
  if (g.is_pointwise()) {
    return {AsCompute(x, buffer, samples * ColumnsPerSample(g)), g.C,
            g.group_C()};
  }
  Unroll(g, samples, x, buffer);
  return {buffer, g.column_size(), g.output_pixels() * g.column_size()};
}

template <typename T, typename Y>
void Fprop(const ConvGeometry& g, int64_t slice, const T* x, const T* w_data,
           Y* y, const Pieces<T>& pieces) {
  using A = Compute<T>;
  const A* w = AsCompute(w_data, pieces.w, g.w_size());
  const int64_t y_sample = g.output_pixels() * g.K;
  const ResultCut cut(g.output_pixels(), g.group_K(), g.column_size());
  ForEachSlice(g, slice, [&](int64_t first, int64_t count) {
    const Columns<T> columns = UnrollSlice(
        g, count, x + first * g.input_pixels() * g.C, pieces.columns);
    A* out;
    if constexpr (std::is_same_v<Y, A>) {
      out = y + first * y_sample;
    } else {
      out = pieces.y;
    }
    ForEachPiece(
        count * g.groups, cut, g.column_size(),
        [&](int64_t i, int64_t row, int64_t rows, int64_t k, int64_t ks) {
          const int64_t n = i / g.groups, group = i % g.groups;
          const int64_t channel = group * g.group_K() + k;
          Gemm<A>(false, false, rows, ks, g.column_size(),
                  columns.at(g, n, group) + row * columns.row, columns.row,
                  w + channel, g.K, 0, out + n * y_sample + row * g.K + channel,
                  g.K);
        });
    if constexpr (!std::is_same_v<Y, A>) {
      ConvertAll(out, y + first * y_sample, count * y_sample);
    }
  });
}

template <typename T>
void Dgrad(const ConvGeometry& g, int64_t slice, const T* dy, const T* w_data,
           T* dx, const Pieces<T>& pieces) {
  using A = Compute<T>;
  const A* w = AsCompute(w_data, pieces.w, g.w_size());
  const int64_t y_sample = g.output_pixels() * g.K;
  const bool pointwise = g.is_pointwise();
  const int64_t row_length = pointwise ? g.C : g.column_size();
  const int64_t group_stride =
      pointwise ? g.group_C() : g.output_pixels() * g.column_size();
  const ResultCut cut(g.output_pixels(), g.column_size(), g.group_K());
  ForEachSlice(g, slice, [&](int64_t first, int64_t count) {
    const A* in = AsCompute(dy + first * y_sample, pieces.y, count * y_sample);
    T* out = dx + first * g.input_pixels() * g.C;
    A* columns = pieces.columns;
    if constexpr (std::is_same_v<T, A>) {
      if (pointwise) columns = out;
    }
    ForEachPiece(
        count * g.groups, cut, g.group_K(),
        [&](int64_t i, int64_t row, int64_t rows, int64_t c, int64_t cs) {
          const int64_t n = i / g.groups, group = i % g.groups;
          const int64_t channel = group * g.group_K();
          Gemm<A>(false, true, rows, cs, g.group_K(),
                  in + n * y_sample + row * g.K + channel, g.K,
                  w + c * g.K + channel, g.K, 0,
                  columns + n * ColumnsPerSample(g) + group * group_stride +
                      row * row_length + c,
                  row_length);
        });
    if (!pointwise) {
      Gather(g, count, columns, out);
    } else if constexpr (!std::is_same_v<T, A>) {
      ConvertAll(columns, out, count * ColumnsPerSample(g));
    }
  });
}

template <typename T>
void Wgrad(const ConvGeometry& g, int64_t slice, const T* x, const T* dy, T* dw,
           const Pieces<T>& pieces) {
  using A = Compute<T>;
  const int64_t y_sample = g.output_pixels() * g.K;
  const ResultCut cut(g.column_size(), g.group_K(), g.output_pixels());
  A* sum;
  if constexpr (std::is_same_v<T, A>) {
    sum = dw;
  } else {
    sum = pieces.w;
  }
  ForEachSlice(g, slice, [&](int64_t first, int64_t count) {
    const Columns<T> columns = UnrollSlice(
        g, count, x + first * g.input_pixels() * g.C, pieces.columns);
    const A* in = AsCompute(dy + first * y_sample, pieces.y, count * y_sample);
    ForEachPiece(
        g.groups, cut, count * g.output_pixels(),
        [&](int64_t group, int64_t c, int64_t cs, int64_t k, int64_t ks) {
          const int64_t channel = group * g.group_K() + k;
          // Samples in order; the first one overwrites.
          for (int64_t n = 0; n < count; ++n) {
            Gemm<A>(true, false, cs, ks, g.output_pixels(),
                    columns.at(g, n, group) + c, columns.row,
                    in + n * y_sample + channel, g.K, first + n == 0 ? 0 : 1,
                    sum + c * g.K + channel, g.K);
          }
        });
  });
  if constexpr (!std::is_same_v<T, A>) ConvertAll(sum, dw, g.w_size());
}

// What the three handlers check and carve alike, and the empty cases: where
// nothing is summed the result is zero. `run` gets the pieces.
template <typename T, typename Run>
ffi::Error RunChecked(const char* op, const ConvGeometry& g, int64_t slice,
                      ffi::AnyBuffer workspace, bool empty_sum,
                      ffi::AnyBuffer result, Run run) {
  if (slice < 1) {
    return ffi::Error::InvalidArgument("jax_convbatch: slice must be positive");
  }
  if (result.element_count() == 0) return ffi::Error::Success();
  if (empty_sum) {
    std::fill_n(static_cast<char*>(result.untyped_data()), result.size_bytes(),
                0);
    return ffi::Error::Success();
  }
  const Stopwatch watch(&handlers_time);
  Workspace rest(workspace);
  const Pieces<T> pieces(g, std::min(slice, g.N), rest);
  JCB_RETURN_IF_ERROR(rest.Check(op, g));
  run(pieces);
  return ffi::Error::Success();
}

ffi::Error FpropImpl(ffi::AnyBuffer x, ffi::AnyBuffer w,
                     ffi::Result<ffi::AnyBuffer> y,
                     ffi::Result<ffi::AnyBuffer> workspace, ConvGeometry g,
                     int64_t slice, int64_t /*precision*/) {
  JCB_RETURN_IF_ERROR(CheckSize("fprop", g, "x", x, g.x_size()));
  JCB_RETURN_IF_ERROR(CheckSize("fprop", g, "w", w, g.w_size()));
  JCB_RETURN_IF_ERROR(CheckSize("fprop", g, "y", *y, g.y_size()));
  return Dispatch("fprop", g, x.element_type(), [&](auto zero) {
    using T = decltype(zero);
    return RunChecked<T>("fprop", g, slice, *workspace, g.column_size() == 0,
                         *y, [&](const Pieces<T>& pieces) {
                           if (y->element_type() == x.element_type()) {
                             Fprop(g, slice, Data<T>(x), Data<T>(w),
                                   Data<T>(*y), pieces);
                           } else {
                             Fprop(g, slice, Data<T>(x), Data<T>(w),
                                   Data<Compute<T>>(*y), pieces);
                           }
                         });
  });
}

ffi::Error DgradImpl(ffi::AnyBuffer dy, ffi::AnyBuffer w,
                     ffi::Result<ffi::AnyBuffer> dx,
                     ffi::Result<ffi::AnyBuffer> workspace, ConvGeometry g,
                     int64_t slice, int64_t /*precision*/) {
  JCB_RETURN_IF_ERROR(CheckSize("dgrad", g, "dy", dy, g.y_size()));
  JCB_RETURN_IF_ERROR(CheckSize("dgrad", g, "w", w, g.w_size()));
  JCB_RETURN_IF_ERROR(CheckSize("dgrad", g, "dx", *dx, g.x_size()));
  const bool empty_sum = g.K == 0 || g.taps() == 0 || g.output_pixels() == 0;
  return Dispatch("dgrad", g, dy.element_type(), [&](auto zero) {
    using T = decltype(zero);
    return RunChecked<T>("dgrad", g, slice, *workspace, empty_sum, *dx,
                         [&](const Pieces<T>& pieces) {
                           Dgrad(g, slice, Data<T>(dy), Data<T>(w),
                                 Data<T>(*dx), pieces);
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
  const bool empty_sum = g.N == 0 || g.output_pixels() == 0;
  return Dispatch("wgrad", g, x.element_type(), [&](auto zero) {
    using T = decltype(zero);
    return RunChecked<T>("wgrad", g, slice, *workspace, empty_sum, *dw,
                         [&](const Pieces<T>& pieces) {
                           Wgrad(g, slice, Data<T>(x), Data<T>(dy),
                                 Data<T>(*dw), pieces);
                         });
  });
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(FpropCpu, FpropImpl, ConvBinding());
XLA_FFI_DEFINE_HANDLER_SYMBOL(DgradCpu, DgradImpl, ConvBinding());
XLA_FFI_DEFINE_HANDLER_SYMBOL(WgradCpu, WgradImpl, ConvBinding());

}  // namespace jax_convbatch
