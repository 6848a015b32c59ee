// SPDX-License-Identifier: Apache-2.0
// Strided filters of one tap: the pixels of x that a line of outputs reads are
// evenly spaced, so the BLAS reads and writes them where they lie, and there
// are no columns. It pays where products of a line need no packing.
#pragma once

#include "blas.h"
#include "blocks.h"
#include "conv_geometry.h"
#include "im2col.h"

namespace jax_convbatch {

// Whether each output reads one pixel of x, in no padding.
inline bool ReadsOnePixel(const ConvGeometry& g) {
  const auto inside = [](int64_t out, int64_t stride, int64_t in) {
    return (out - 1) * stride < in;
  };
  return g.taps() == 1 && g.pad.all(0) && g.input_dilation.all(1) &&
         inside(g.O, g.stride.d, g.D) && inside(g.P, g.stride.h, g.H) &&
         inside(g.Q, g.stride.w, g.W);
}

// The products of such a convolution, [Q, depth] [depth, N] for each line.
class LineProducts {
 public:
  LineProducts(const ConvGeometry& g, int64_t N, int64_t depth,
               int64_t itemsize)
      : g_(g),
        depth_(depth),
        cut_(ResultCut::Untransposed(g.Q, N, depth, itemsize)),
        possible_(cut_.small && g.Q >= kShort && ReadsOnePixel(g)) {}

  // Otherwise the BLAS would be slow.
  bool possible() const { return possible_; }

  // Calls body(pixel of x, pixel of y, pixels, group, column, columns) for each
  // product.
  template <typename Body>
  void ForEach(int64_t samples, Body body) const {
    const int64_t lines = g_.O * g_.P;
    ForEachPiece(
        samples * lines * g_.groups, cut_, depth_,
        [&](int64_t i, int64_t q, int64_t qs, int64_t column, int64_t columns) {
          const int64_t line = i / g_.groups, n = line / lines;
          const int64_t d = line % lines / g_.P * g_.stride.d;
          const int64_t h = line % g_.P * g_.stride.h;
          const int64_t row = (n * g_.D + d) * g_.H + h;
          body(row * g_.W + q * g_.stride.w, line * g_.Q + q, qs, i % g_.groups,
               column, columns);
        });
  }

 private:
  static constexpr int64_t kShort = 12;

  const ConvGeometry g_;
  const int64_t depth_;
  const ResultCut cut_;
  const bool possible_;
};

// y = x w. False where nothing is done.
template <typename A>
bool FpropLines(const ConvGeometry& g, int64_t samples, const A* x, const A* w,
                A* y) {
  const LineProducts products(g, g.group_K(), g.group_C(), sizeof(A));
  if (!products.possible()) return false;
  products.ForEach(samples, [&](int64_t from, int64_t to, int64_t pixels,
                                int64_t group, int64_t k, int64_t ks) {
    const int64_t channel = group * g.group_K() + k;
    Gemm<A>(false, false, pixels, ks, g.group_C(),
            x + from * g.C + group * g.group_C(), g.stride.w * g.C, w + channel,
            g.K, 0, y + to * g.K + channel, g.K);
  });
  return true;
}

// dx = dy w^T, and zeros. False where nothing is done. `w_transposed` is
// [K, C/groups].
template <typename A>
bool DgradLines(const ConvGeometry& g, int64_t samples, const A* dy, const A* w,
                A* w_transposed, A* dx) {
  const int64_t Cg = g.group_C();
  const LineProducts products(g, Cg, g.group_K(), sizeof(A));
  if (!products.possible()) return false;
  ParallelFor(g.K, 64, [&](int64_t begin, int64_t end) {
    for (int64_t c = 0; c < Cg; ++c) {
      for (int64_t k = begin; k < end; ++k) {
        w_transposed[k * Cg + c] = w[c * g.K + k];
      }
    }
  });
  ZeroUnread(g, samples, dx);
  products.ForEach(samples, [&](int64_t to, int64_t from, int64_t pixels,
                                int64_t group, int64_t c, int64_t cs) {
    const int64_t channel = group * g.group_K();
    Gemm<A>(false, false, pixels, cs, g.group_K(), dy + from * g.K + channel,
            g.K, w_transposed + channel * Cg + c, Cg, 0,
            dx + to * g.C + group * Cg + c, g.stride.w * g.C);
  });
  return true;
}

}  // namespace jax_convbatch
