// SPDX-License-Identifier: Apache-2.0
#include "causal_conv1d_loops.h"

#include <algorithm>

#include "vector_clones.h"

#define JCB_INLINE inline __attribute__((always_inline))
// Where `out` is one of the inputs, element i is read before it is written.
#ifdef __clang__
#define JCB_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define JCB_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace jax_convbatch {
namespace {

// At a time: more rows than this leave registers for nothing else.
constexpr int64_t kTaps = 4;

template <int kCount, typename F>
JCB_INLINE void Sum(const F* init, const F* w, int64_t stride,
                    const F* const* rows, F* out, int64_t count) {
  const F *w0 = w, *x0 = rows[0];
  const F *w1 = w + (kCount > 1) * stride, *x1 = rows[kCount > 1 ? 1 : 0];
  const F *w2 = w + 2 * (kCount > 2) * stride, *x2 = rows[kCount > 2 ? 2 : 0];
  const F *w3 = w + 3 * (kCount > 3) * stride, *x3 = rows[kCount > 3 ? 3 : 0];
  JCB_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) {
    F sum = init[i] + w0[i] * x0[i];
    if constexpr (kCount > 1) sum += w1[i] * x1[i];
    if constexpr (kCount > 2) sum += w2[i] * x2[i];
    if constexpr (kCount > 3) sum += w3[i] * x3[i];
    out[i] = sum;
  }
}

template <typename F>
JCB_INLINE void SumAll(const F* init, const F* w, int64_t stride,
                       const F* const* rows, int64_t taps, F* out,
                       int64_t count) {
  for (int64_t t = 0; t < taps; t += kTaps) {
    switch (std::min(taps - t, kTaps)) {
      case 1:
        Sum<1>(init, w + t * stride, stride, rows + t, out, count);
        break;
      case 2:
        Sum<2>(init, w + t * stride, stride, rows + t, out, count);
        break;
      case 3:
        Sum<3>(init, w + t * stride, stride, rows + t, out, count);
        break;
      default:
        Sum<4>(init, w + t * stride, stride, rows + t, out, count);
    }
    init = out;
  }
}

template <int kCount, typename F>
JCB_INLINE void Add(const F* dz, const F* const* rows, F* sums, int64_t stride,
                    int64_t count) {
  const F* x0 = rows[0];
  const F* x1 = rows[kCount > 1 ? 1 : 0];
  const F* x2 = rows[kCount > 2 ? 2 : 0];
  const F* x3 = rows[kCount > 3 ? 3 : 0];
  F *s0 = sums, *s1 = sums + stride, *s2 = s1 + stride, *s3 = s2 + stride;
  JCB_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) {
    const F d = dz[i];
    s0[i] += d * x0[i];
    if constexpr (kCount > 1) s1[i] += d * x1[i];
    if constexpr (kCount > 2) s2[i] += d * x2[i];
    if constexpr (kCount > 3) s3[i] += d * x3[i];
  }
}

template <typename F>
JCB_INLINE void AddAll(const F* dz, const F* const* rows, int64_t taps, F* sums,
                       int64_t stride, int64_t count) {
  for (int64_t t = 0; t < taps; t += kTaps, sums += kTaps * stride) {
    switch (std::min(taps - t, kTaps)) {
      case 1:
        Add<1>(dz, rows + t, sums, stride, count);
        break;
      case 2:
        Add<2>(dz, rows + t, sums, stride, count);
        break;
      case 3:
        Add<3>(dz, rows + t, sums, stride, count);
        break;
      default:
        Add<4>(dz, rows + t, sums, stride, count);
    }
  }
}

}  // namespace

#define JCB_LOOPS(F)                                                         \
  JCB_VECTOR_CLONES                                                          \
  void SumTaps(const F* init, const F* w, int64_t stride,                    \
               const F* const* rows, int64_t taps, F* out, int64_t count) {  \
    SumAll(init, w, stride, rows, taps, out, count);                         \
  }                                                                          \
  JCB_VECTOR_CLONES                                                          \
  void AddProducts(const F* dz, const F* const* rows, int64_t taps, F* sums, \
                   int64_t stride, int64_t count) {                          \
    AddAll(dz, rows, taps, sums, stride, count);                             \
    F* __restrict__ sum = sums + taps * stride;                              \
    for (int64_t i = 0; i < count; ++i) sum[i] += dz[i];                     \
  }
#define JCB_CONVERSIONS(T, F)                                           \
  JCB_VECTOR_CLONES                                                     \
  void WidenRow(const T* __restrict__ in, F* __restrict__ out,          \
                int64_t count) {                                        \
    for (int64_t i = 0; i < count; ++i) out[i] = ToCompute(in[i]);      \
  }                                                                     \
  JCB_VECTOR_CLONES                                                     \
  void NarrowRow(const F* __restrict__ in, T* __restrict__ out,         \
                 int64_t count) {                                       \
    for (int64_t i = 0; i < count; ++i) out[i] = FromCompute<T>(in[i]); \
  }

JCB_LOOPS(float)
JCB_LOOPS(double)
JCB_CONVERSIONS(Half, float)
JCB_CONVERSIONS(BFloat16, float)

#undef JCB_CONVERSIONS
#undef JCB_LOOPS

void WidenRow(const float* in, float* out, int64_t count) {
  std::copy_n(in, count, out);
}
void WidenRow(const double* in, double* out, int64_t count) {
  std::copy_n(in, count, out);
}
void NarrowRow(const float* in, float* out, int64_t count) {
  std::copy_n(in, count, out);
}
void NarrowRow(const double* in, double* out, int64_t count) {
  std::copy_n(in, count, out);
}

}  // namespace jax_convbatch
