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

// Where the taps of one outer coordinate meet the other side of an axis: the
// coordinate there for each tap, or -1.
class Taps {
 public:
  Taps(const int64_t* first, int64_t step) : first_(first), step_(step) {}
  int64_t operator[](int64_t tap) const { return first_[tap * step_]; }

 private:
  const int64_t* first_;
  int64_t step_;
};

// The meetings of outputs and inputs along one axis, from either side. They
// depend on one number only, outer * outer_step + tap * tap_step, so that a
// table over it does each division once and grows with the axis, not with its
// square.
class Meetings {
 public:
  // For outputs: which inputs they read.
  static Meetings Inputs(int64_t out, int64_t taps, int64_t stride, int64_t pad,
                         int64_t filter_dilation, int64_t input_dilation,
                         int64_t in) {
    return Meetings(out, taps, stride, filter_dilation, -pad, input_dilation,
                    in);
  }
  // For inputs: which outputs read them.
  static Meetings Outputs(int64_t in, int64_t taps, int64_t stride, int64_t pad,
                          int64_t filter_dilation, int64_t input_dilation,
                          int64_t out) {
    return Meetings(in, taps, input_dilation, -filter_dilation, pad, stride,
                    out);
  }

  Taps operator[](int64_t outer) const {
    return Taps(at_.data() + origin_ + outer * outer_step_, tap_step_);
  }

 private:
  // They meet where outer * outer_step + tap * tap_step + offset is other *
  // other_step, with `other` in [0, size).
  Meetings(int64_t outer, int64_t taps, int64_t outer_step, int64_t tap_step,
           int64_t offset, int64_t other_step, int64_t size)
      : outer_step_(outer_step), tap_step_(tap_step) {
    const int64_t reach = (taps - 1) * tap_step;
    origin_ = std::max<int64_t>(0, -reach);
    at_.resize(origin_ + (outer - 1) * outer_step +
               std::max<int64_t>(0, reach) + 1);
    for (int64_t i = 0; i < static_cast<int64_t>(at_.size()); ++i) {
      const int64_t at = i - origin_ + offset;
      const bool meets =
          at >= 0 && at % other_step == 0 && at / other_step < size;
      at_[i] = meets ? at / other_step : -1;
    }
  }

  int64_t outer_step_, tap_step_, origin_;
  std::vector<int64_t> at_;
};

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

}  // namespace

template <typename T>
void Unroll(const ConvGeometry& g, int64_t samples, const T* x,
            Compute<T>* columns) {
  using A = Compute<T>;
  const auto d = Meetings::Inputs(g.O, g.T, g.stride.d, g.pad.d,
                                  g.filter_dilation.d, g.input_dilation.d, g.D);
  const auto h = Meetings::Inputs(g.P, g.R, g.stride.h, g.pad.h,
                                  g.filter_dilation.h, g.input_dilation.h, g.H);
  const auto w = Meetings::Inputs(g.Q, g.S, g.stride.w, g.pad.w,
                                  g.filter_dilation.w, g.input_dilation.w, g.W);
  const int64_t Cg = g.group_C(), column = g.column_size();
  const int64_t group_size = g.output_pixels() * column;
  // Neighbouring taps read neighbouring pixels: one copy for all of a row.
  const bool rows_are_runs =
      g.groups == 1 && g.filter_dilation.w == 1 && g.input_dilation.w == 1;

  // A column piece: the S taps of one (t, r) for one output pixel.
  auto unroll_row = [&](const T* row, Taps w_at, A* to) {
    if (row == nullptr) {
      for (int64_t i = 0; i < g.groups; ++i)
        ZeroRun(to + i * group_size, g.S * Cg);
    } else if (rows_are_runs) {
      int64_t begin = 0, end = g.S;
      while (begin < end && w_at[begin] < 0) ++begin;
      while (end > begin && w_at[end - 1] < 0) --end;
      ZeroRun(to, begin * Cg);
      if (begin < end) {
        CopyRun(row + w_at[begin] * g.C, to + begin * Cg, (end - begin) * Cg);
      }
      ZeroRun(to + end * Cg, (g.S - end) * Cg);
    } else {
      for (int64_t s = 0; s < g.S; ++s) {
        const T* pixel = w_at[s] < 0 ? nullptr : row + w_at[s] * g.C;
        for (int64_t i = 0; i < g.groups; ++i) {
          A* at = to + i * group_size + s * Cg;
          pixel ? CopyRun(pixel + i * Cg, at, Cg) : ZeroRun(at, Cg);
        }
      }
    }
  };

  const int64_t rows = samples * g.O * g.P;
  const int64_t row_bytes = g.Q * g.taps() * g.C * int64_t{sizeof(A)};
  ParallelFor(rows, Grain(row_bytes), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t n = i / (g.O * g.P), op = i % (g.O * g.P);
      const Taps d_at = d[op / g.P], h_at = h[op % g.P];
      const T* sample = x + n * g.input_pixels() * g.C;
      A* to = columns + n * ColumnsPerSample(g) + op * g.Q * column;
      for (int64_t q = 0; q < g.Q; ++q, to += column) {
        for (int64_t t = 0; t < g.T; ++t) {
          for (int64_t r = 0; r < g.R; ++r) {
            const bool inside = d_at[t] >= 0 && h_at[r] >= 0;
            const T* row = inside
                               ? sample + (d_at[t] * g.H + h_at[r]) * g.W * g.C
                               : nullptr;
            unroll_row(row, w[q], to + (t * g.R + r) * g.S * Cg);
          }
        }
      }
    }
  });
}

template <typename T>
void Gather(const ConvGeometry& g, int64_t samples, const Compute<T>* columns,
            T* dx) {
  using A = Compute<T>;
  const auto d =
      Meetings::Outputs(g.D, g.T, g.stride.d, g.pad.d, g.filter_dilation.d,
                        g.input_dilation.d, g.O);
  const auto h =
      Meetings::Outputs(g.H, g.R, g.stride.h, g.pad.h, g.filter_dilation.h,
                        g.input_dilation.h, g.P);
  const auto w =
      Meetings::Outputs(g.W, g.S, g.stride.w, g.pad.w, g.filter_dilation.w,
                        g.input_dilation.w, g.Q);
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

#define JCB_INSTANTIATE(T)                                                   \
  template void Unroll(const ConvGeometry&, int64_t, const T*, Compute<T>*); \
  template void Gather(const ConvGeometry&, int64_t, const Compute<T>*, T*);
JCB_INSTANTIATE(float)
JCB_INSTANTIATE(double)
JCB_INSTANTIATE(Half)
JCB_INSTANTIATE(BFloat16)
#undef JCB_INSTANTIATE

}  // namespace jax_convbatch
