// SPDX-License-Identifier: Apache-2.0
// Convolution as matrix products over columns, on the CPU. With one group:
//
//   fprop   y[n]  [OPQ, K]  = columns(x[n]) [OPQ, TRSC] · w [TRSC, K]
//   dgrad   dx[n]           = gather(dy[n] [OPQ, K] · w^T)
//   wgrad   dw [TRSC, K]    = sum over n of columns(x[n])^T · dy[n]
//
// and the same on the channels of each group. A slice of samples is unrolled
// at a time, by all threads; then the threads share the products of its
// samples, cut into pieces by a rule of their sizes and of the BLAS's kernels.
// Where fprop has pieces enough, a thread unrolls and multiplies one after the
// other; strided filters of one tap may do without columns (line_gemms.h). As
// no product spans samples, the bits depend neither on the slice nor, for y and
// dx, on the batch, nor on the number of threads.
#include "im2col_gemm.h"

#include <algorithm>
#include <atomic>
#include <string_view>
#include <type_traits>

#include "column_gemms.h"
#include "half.h"
#include "handlers.h"
#include "im2col.h"
#include "line_gemms.h"

namespace jax_convbatch {
namespace {

// The workspace's pieces; null where a geometry or dtype does without.
template <typename T>
struct Pieces {
  static constexpr bool kConverts = !std::is_same_v<T, Compute<T>>;

  Pieces(const ConvGeometry& g, int64_t slice, bool transposes,
         Workspace& workspace) {
    using A = Compute<T>;
    if (!g.is_pointwise() || kConverts) {
      columns = workspace.Take<A>(slice * ColumnsPerSample(g));
    }
    if (kConverts) {
      y = workspace.Take<A>(slice * g.output_pixels() * g.K);
      w = workspace.Take<A>(g.w_size());
    } else if (transposes && g.taps() == 1 && !g.is_pointwise()) {
      w_transposed = workspace.Take<A>(g.w_size());
    }
  }

  Compute<T>*columns = nullptr, *y = nullptr, *w = nullptr;
  Compute<T>* w_transposed = nullptr;  // dgrad's
};

// The columns of a slice: x itself where the filter is pointwise.
template <typename T>
Columns<const Compute<T>> UnrollSlice(const ConvGeometry& g, int64_t samples,
                                      const T* x, Compute<T>* buffer) {
  using Result = Columns<const Compute<T>>;
  if (g.is_pointwise()) {
    return Result::Pointwise(
        g, AsCompute(x, buffer, samples * ColumnsPerSample(g)));
  }
  Unroll(g, samples, x, buffer);
  return Result::Unrolled(g, buffer);
}

// y = columns w, each piece of the columns unrolled just before it is
// multiplied, by the same thread, over the one before: so they stay in the
// thread's cache. False where there are too few pieces to share out. The
// products are those of FpropProducts.
template <typename T>
bool UnrollAndMultiply(const ConvGeometry& g, int64_t samples, const T* x,
                       const Compute<T>* w, Compute<T>* y, Compute<T>* buffer) {
  using A = Compute<T>;
  const int64_t column = g.column_size(), pixels = g.output_pixels();
  const auto cut =
      ResultCut::Untransposed(pixels, g.group_K(), column, sizeof(A));
  const int64_t pieces = samples * cut.rows.count, threads = ThreadCount();
  if (pieces < 4 * threads || !OneThreadBlas::Possible()) return false;
  const Unroller<T> unroll(g);
  const auto multiply = [&](int64_t piece, A* columns) {
    const int64_t n = piece / cut.rows.count;
    const int64_t first = cut.rows.begin(piece % cut.rows.count);
    const int64_t rows = cut.rows.width(piece % cut.rows.count);
    unroll(x + n * g.input_pixels() * g.C, first, rows, columns, rows * column);
    const Stopwatch watch(&products_time, threads);
    for (int64_t group = 0; group < g.groups; ++group) {
      for (int64_t k = 0; k < cut.columns.count; ++k) {
        const int64_t channel = group * g.group_K() + cut.columns.begin(k);
        Gemm<A>(false, false, rows, cut.columns.width(k), column,
                columns + group * rows * column, column, w + channel, g.K, 0,
                y + (n * pixels + first) * g.K + channel, g.K);
      }
    }
  };
  // Threads take ranges of pieces, many, to end at about the same time. Each
  // has room for a piece: together at most half of what all columns have.
  const int64_t range = std::max<int64_t>(1, pieces / (16 * threads));
  std::atomic<int64_t> next{0};
  const OneThreadBlas one_thread;
  ParallelFor(threads, 1, [&](int64_t thread, int64_t last) {
    for (; thread < last; ++thread) {
      A* columns = buffer + thread * cut.rows.length * g.taps() * g.C;
      for (int64_t begin; (begin = next.fetch_add(range)) < pieces;) {
        const int64_t end = std::min(begin + range, pieces);
        for (int64_t i = begin; i < end; ++i) multiply(i, columns);
      }
    }
  });
  return true;
}

template <typename T, typename Y>
void Fprop(const ConvGeometry& g, int64_t slice, const T* x, const T* w_data,
           Y* y, const Pieces<T>& pieces) {
  using A = Compute<T>;
  const A* w = AsCompute(w_data, pieces.w, g.w_size());
  const int64_t y_sample = g.output_pixels() * g.K;
  ForEachSlice(g, slice, [&](int64_t first, int64_t count) {
    const T* in = x + first * g.input_pixels() * g.C;
    A* out;
    if constexpr (std::is_same_v<Y, A>) {
      out = y + first * y_sample;
    } else {
      out = pieces.y;
    }
    if constexpr (std::is_same_v<T, A>) {
      if (!g.is_pointwise() && FpropLines(g, count, in, w, out)) return;
    }
    if (g.is_pointwise() ||
        !UnrollAndMultiply(g, count, in, w, out, pieces.columns)) {
      FpropProducts<A>(g, count, UnrollSlice(g, count, in, pieces.columns), w,
                       out);
    }
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
  ForEachSlice(g, slice, [&](int64_t first, int64_t count) {
    const A* in = AsCompute(dy + first * y_sample, pieces.y, count * y_sample);
    T* out = dx + first * g.input_pixels() * g.C;
    A* columns = pieces.columns;
    if constexpr (std::is_same_v<T, A>) {
      if (pointwise) {
        columns = out;
      } else if (DgradLines(g, count, in, w, pieces.w_transposed, out)) {
        return;
      }
    }
    DgradProducts<A>(g, count, in, w,
                     pointwise ? Columns<A>::Pointwise(g, columns)
                               : Columns<A>::Unrolled(g, columns));
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
  A* sum;
  if constexpr (std::is_same_v<T, A>) {
    sum = dw;
  } else {
    sum = pieces.w;
  }
  ForEachSlice(g, slice, [&](int64_t first, int64_t count) {
    const auto columns = UnrollSlice(
        g, count, x + first * g.input_pixels() * g.C, pieces.columns);
    const A* in = AsCompute(dy + first * y_sample, pieces.y, count * y_sample);
    WgradProducts<A>(g, first, count, columns, in, sum);
  });
  if constexpr (!std::is_same_v<T, A>) ConvertAll(sum, dw, g.w_size());
}

// What the three handlers check and carve alike. `run` gets the pieces.
template <typename T, typename Run>
ffi::Error RunChecked(const char* op, const ConvGeometry& g, int64_t slice,
                      ffi::AnyBuffer workspace, bool empty_sum,
                      ffi::AnyBuffer result, Run run) {
  if (slice < 1) {
    return ffi::Error::InvalidArgument("jax_convbatch: slice must be positive");
  }
  return RunOrZero(empty_sum, result, [&] {
    AskForHugePages({workspace});
    Workspace rest(workspace);
    const bool transposes = std::string_view(op) == "dgrad";
    const Pieces<T> pieces(g, std::min(slice, g.N), transposes, rest);
    JCB_RETURN_IF_ERROR(rest.Check(op, g));
    run(pieces);
    return ffi::Error::Success();
  });
}

ffi::Error FpropImpl(ffi::AnyBuffer x, ffi::AnyBuffer w,
                     ffi::Result<ffi::AnyBuffer> y,
                     ffi::Result<ffi::AnyBuffer> workspace, ConvGeometry g,
                     int64_t slice, int64_t /*precision*/) {
  JCB_RETURN_IF_ERROR(CheckRoles("fprop", g, {"x", x, g.x_size()},
                                 {"w", w, g.w_size()}, {"y", *y, g.y_size()},
                                 /*may_widen=*/true));
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
  JCB_RETURN_IF_ERROR(CheckRoles("dgrad", g, {"dy", dy, g.y_size()},
                                 {"w", w, g.w_size()},
                                 {"dx", *dx, g.x_size()}));
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
  JCB_RETURN_IF_ERROR(CheckRoles("wgrad", g, {"x", x, g.x_size()},
                                 {"dy", dy, g.y_size()},
                                 {"dw", *dw, g.w_size()}));
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
