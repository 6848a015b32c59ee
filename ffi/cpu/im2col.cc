// SPDX-License-Identifier: Apache-2.0
#include "im2col.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "streaming.h"
#include "vector_clones.h"

namespace jax_convbatch {
namespace {

// Bytes of columns that one task should touch: enough to pay for handing it to
// another thread, little enough to share the work evenly.
constexpr int64_t kTaskBytes = 1 << 20;

int64_t Grain(int64_t bytes_per_item) {
  return std::max<int64_t>(1,
                           kTaskBytes / std::max<int64_t>(bytes_per_item, 1));
}

template <typename T>
void CopyRun(const T* from, Compute<T>* to, int64_t count) {
  if constexpr (std::is_same_v<T, Compute<T>>) {
    std::memcpy(to, from, count * sizeof(T));
  } else {
    for (int64_t i = 0; i < count; ++i) to[i] = ToCompute(from[i]);
  }
}

template <typename A>
void ZeroRun(A* to, int64_t count) {
  std::memset(to, 0, count * sizeof(A));
}

JCB_VECTOR_CLONES
void AddRun(const float* from, float* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] += from[i];
}

JCB_VECTOR_CLONES
void AddRun(const double* from, double* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] += from[i];
}

// Which outputs read a pixel of x.
struct Readers {
  explicit Readers(const ConvGeometry& g)
      : d(Meetings::Outputs(g.D, g.T, g.stride.d, g.pad.d, g.filter_dilation.d,
                            g.input_dilation.d, g.O)),
        h(Meetings::Outputs(g.H, g.R, g.stride.h, g.pad.h, g.filter_dilation.h,
                            g.input_dilation.h, g.P)),
        w(Meetings::Outputs(g.W, g.S, g.stride.w, g.pad.w, g.filter_dilation.w,
                            g.input_dilation.w, g.Q)) {}

  const Meetings d, h, w;
};

}  // namespace

template <typename T>
Unroller<T>::Unroller(const ConvGeometry& g)
    : g_(g),
      d_(Meetings::Inputs(g.O, g.T, g.stride.d, g.pad.d, g.filter_dilation.d,
                          g.input_dilation.d, g.D)),
      h_(Meetings::Inputs(g.P, g.R, g.stride.h, g.pad.h, g.filter_dilation.h,
                          g.input_dilation.h, g.H)),
      w_(Meetings::Inputs(g.Q, g.S, g.stride.w, g.pad.w, g.filter_dilation.w,
                          g.input_dilation.w, g.W)) {}

template <typename T>
void Unroller<T>::UnrollTaps(const T* row, Taps w_at, Compute<T>* to,
                             int64_t group_stride) const {
  const int64_t Cg = g_.group_C();
  // Neighbouring taps read neighbouring pixels: one copy for all of a row.
  const bool rows_are_runs =
      g_.groups == 1 && g_.filter_dilation.w == 1 && g_.input_dilation.w == 1;
  if (row == nullptr) {
    for (int64_t i = 0; i < g_.groups; ++i) {
      ZeroRun(to + i * group_stride, g_.S * Cg);
    }
  } else if (rows_are_runs) {
    int64_t begin = 0, end = g_.S;
    while (begin < end && w_at[begin] < 0) ++begin;
    while (end > begin && w_at[end - 1] < 0) --end;
    ZeroRun(to, begin * Cg);
    if (begin < end) {
      CopyRun(row + w_at[begin] * g_.C, to + begin * Cg, (end - begin) * Cg);
    }
    ZeroRun(to + end * Cg, (g_.S - end) * Cg);
  } else {
    for (int64_t s = 0; s < g_.S; ++s) {
      const T* pixel = w_at[s] < 0 ? nullptr : row + w_at[s] * g_.C;
      for (int64_t i = 0; i < g_.groups; ++i) {
        Compute<T>* at = to + i * group_stride + s * Cg;
        pixel ? CopyRun(pixel + i * Cg, at, Cg) : ZeroRun(at, Cg);
      }
    }
  }
}

template <typename T>
void Unroller<T>::operator()(const T* sample, int64_t first, int64_t count,
                             Compute<T>* columns, int64_t group_stride) const {
  const int64_t column = g_.column_size(), piece = g_.S * g_.group_C();
  for (int64_t i = first; i < first + count; ++i, columns += column) {
    const int64_t op = i / g_.Q;
    const Taps d_at = d_[op / g_.P], h_at = h_[op % g_.P], w_at = w_[i % g_.Q];
    for (int64_t t = 0; t < g_.T; ++t) {
      for (int64_t r = 0; r < g_.R; ++r) {
        const bool inside = d_at[t] >= 0 && h_at[r] >= 0;
        const T* row = inside
                           ? sample + (d_at[t] * g_.H + h_at[r]) * g_.W * g_.C
                           : nullptr;
        UnrollTaps(row, w_at, columns + (t * g_.R + r) * piece, group_stride);
      }
    }
  }
}

template <typename T>
void Unroll(const ConvGeometry& g, int64_t samples, const T* x,
            Compute<T>* columns) {
  const Unroller<T> unroll(g);
  const int64_t lines = g.O * g.P, column = g.column_size();
  const int64_t line_bytes = g.Q * g.taps() * g.C * int64_t{sizeof(Compute<T>)};
  ParallelFor(samples * lines, Grain(line_bytes),
              [&](int64_t begin, int64_t end) {
                for (int64_t i = begin; i < end; ++i) {
                  const int64_t n = i / lines, pixel = i % lines * g.Q;
                  unroll(x + n * g.input_pixels() * g.C, pixel, g.Q,
                         columns + n * ColumnsPerSample(g) + pixel * column,
                         g.output_pixels() * column);
                }
              });
}

template <typename T>
void Gather(const ConvGeometry& g, int64_t samples, const Compute<T>* columns,
            T* dx) {
  using A = Compute<T>;
  const Readers readers(g);
  const auto &d = readers.d, &h = readers.h, &w = readers.w;
  const int64_t Cg = g.group_C(), column = g.column_size();
  const int64_t group_size = g.output_pixels() * column;

  auto gather_pixel = [&](const A* sample, Taps o_at, Taps p_at, Taps q_at,
                          A* sum) {
    bool first = true;  // the first tap overwrites
    for (int64_t t = 0; t < g.T; ++t) {
      if (o_at[t] < 0) continue;
      for (int64_t r = 0; r < g.R; ++r) {
        if (p_at[r] < 0) continue;
        const int64_t row = (o_at[t] * g.P + p_at[r]) * g.Q;
        for (int64_t s = 0; s < g.S; ++s) {
          if (q_at[s] < 0) continue;
          const int64_t tap = (t * g.R + r) * g.S + s;
          const A* from = sample + (row + q_at[s]) * column + tap * Cg;
          for (int64_t i = 0; i < g.groups; ++i) {
            const A* run = from + i * group_size;
            first ? CopyRun(run, sum + i * Cg, Cg)
                  : AddRun(run, sum + i * Cg, Cg);
          }
          first = false;
        }
      }
    }
    if (first) ZeroRun(sum, g.C);
  };

  // With one tap nothing is added: the result is a copy and zeros.
  const bool streams = std::is_same_v<T, A> && g.groups == 1 && g.taps() == 1 &&
                       g.x_size() * int64_t{sizeof(T)} >= kStreamBytes;
  auto stream_row = [&](const A* sample, int64_t o, int64_t p, T* to) {
    if (o < 0 || p < 0) return Stream(nullptr, to, g.W * g.C * sizeof(T));
    for (int64_t iw = 0; iw < g.W; ++iw, to += g.C) {
      const int64_t q = w[iw][0];
      const A* from = sample + ((o * g.P + p) * g.Q + q) * g.C;
      Stream(q < 0 ? nullptr : from, to, g.C * sizeof(T));
    }
  };

  const int64_t rows = samples * g.D * g.H;
  const int64_t row_bytes = g.W * g.C * g.taps() * int64_t{sizeof(A)};
  ParallelFor(rows, Grain(row_bytes), [&](int64_t begin, int64_t end) {
    std::vector<A> buffer(std::is_same_v<T, A> ? 0 : g.C);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t n = i / (g.D * g.H), dh = i % (g.D * g.H);
      const Taps o_at = d[dh / g.H], p_at = h[dh % g.H];
      const A* sample = columns + n * ColumnsPerSample(g);
      T* to = dx + i * g.W * g.C;
      if (streams) {
        stream_row(sample, o_at[0], p_at[0], to);
        continue;
      }
      for (int64_t iw = 0; iw < g.W; ++iw, to += g.C) {
        if constexpr (std::is_same_v<T, A>) {
          gather_pixel(sample, o_at, p_at, w[iw], to);
        } else {
          gather_pixel(sample, o_at, p_at, w[iw], buffer.data());
          std::transform(buffer.begin(), buffer.end(), to, FromCompute<T>);
        }
      }
    }
    if (streams) StreamFence();
  });
}

template <typename T>
void ZeroUnread(const ConvGeometry& g, int64_t samples, T* dx) {
  const Readers readers(g);
  const int64_t pixel_bytes = g.C * int64_t{sizeof(T)};
  const bool streams = g.x_size() * int64_t{sizeof(T)} >= kStreamBytes;
  const auto zero = [&](T* to, int64_t pixels) {
    if (streams) {
      Stream(nullptr, to, pixels * pixel_bytes);
    } else {
      ZeroRun(to, pixels * g.C);
    }
  };
  ParallelFor(
      samples * g.D * g.H, Grain(g.W * pixel_bytes),
      [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          T* line = dx + i * g.W * g.C;
          if (readers.d[i / g.H % g.D][0] < 0 || readers.h[i % g.H][0] < 0) {
            zero(line, g.W);
            continue;
          }
          for (int64_t w = 0; w < g.W; ++w) {
            if (readers.w[w][0] < 0) zero(line + w * g.C, 1);
          }
        }
        if (streams) StreamFence();
      });
}

#define JCB_INSTANTIATE(T)                                                   \
  template class Unroller<T>;                                                \
  template void Unroll(const ConvGeometry&, int64_t, const T*, Compute<T>*); \
  template void Gather(const ConvGeometry&, int64_t, const Compute<T>*, T*); \
  template void ZeroUnread(const ConvGeometry&, int64_t, T*);
JCB_INSTANTIATE(float)
JCB_INSTANTIATE(double)
JCB_INSTANTIATE(Half)
JCB_INSTANTIATE(BFloat16)
#undef JCB_INSTANTIATE

}  // namespace jax_convbatch
