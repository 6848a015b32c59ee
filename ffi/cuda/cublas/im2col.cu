// SPDX-License-Identifier: Apache-2.0
#include "cuda/common/dtypes.h"
#include "cuda/common/fast_divmod.h"
#include "cuda/common/kernel_shape.h"
#include "cuda/cublas/im2col.h"

namespace jax_convbatch {
namespace {

constexpr int kThreads = 256;
// As many words as a GPU has threads.
constexpr int64_t kManyWords = int64_t{1} << 18;
// Loads in flight in a thread of Col2ImKernel.
constexpr int kUnroll = 4;

// One thread copies the same word of the columns of kRun output pixels in a
// row. A word is as many bytes of one tap's channels as can be moved at once.
template <typename Word, typename Index, int kRun>
__global__ void __launch_bounds__(kThreads)
    Im2ColKernel(const __grid_constant__ Shape<Index> shape, Index pixels,
                 const Word* __restrict__ x, Word* __restrict__ cols) {
  const Index at = Index{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= shape.threads) return;
  const Index group_channels = shape.group_channels.divisor();
  const Index column_size = shape.taps * group_channels;
  Index rest = at;
  const Index c = TakeDigit(shape.group_channels, rest);
  const Index s = TakeDigit(shape.w.filter_radix, rest);
  const Index r = TakeDigit(shape.h.filter_radix, rest);
  const Index t = TakeDigit(shape.d.filter_radix, rest);
  const Index first_pixel = rest * kRun;
  Word* column = cols + first_pixel * column_size + (at - rest * column_size);

  Index q = 0;
  const Word* row = nullptr;  // of x, at this thread's channels; null: padding
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    Index pixel = first_pixel + i;
    if (pixel >= pixels) return;
    if (i == 0 || ++q == shape.w.output_radix.divisor()) {
      q = TakeDigit(shape.w.output_radix, pixel);
      const Index p = TakeDigit(shape.h.output_radix, pixel);
      const Index o = TakeDigit(shape.d.output_radix, pixel);
      const Index n = TakeDigit(shape.samples, pixel);
      const Index group = pixel;
      const auto d = shape.d.InputAt(o, t);
      const auto h = shape.h.InputAt(p, r);
      const Index line = (n * shape.d.input_size + d) * shape.h.input_size + h;
      row = d < 0 || h < 0
                ? nullptr
                : x + line * shape.w.input_size * shape.channels.divisor() +
                      group * group_channels + c;
    }
    const auto w = shape.w.InputAt(q, s);
    Word word{};
    if (row != nullptr && w >= 0) word = row[w * shape.channels.divisor()];
    *column = word;
    column += column_size;
  }
}

template <typename Word, int kRun>
cudaError_t LaunchIm2Col(cudaStream_t stream, const ConvGeometry& g,
                         int64_t samples, int64_t vector_size, const void* x,
                         void* cols) {
  const int64_t column_size = g.column_size() / vector_size;
  const int64_t pixels = g.groups * samples * g.output_pixels();
  const int64_t threads = (pixels + kRun - 1) / kRun * column_size;
  const int64_t x_size = samples * g.input_pixels() * g.C / vector_size;
  auto launch = [&](auto index) {
    using Index = decltype(index);
    const Shape<Index> shape(g, samples, vector_size, threads);
    Im2ColKernel<Word, Index, kRun>
        <<<Blocks(threads, kThreads), kThreads, 0, stream>>>(
            shape, static_cast<Index>(pixels), static_cast<const Word*>(x),
            static_cast<Word*>(cols));
  };
  if (FitsInt32(g, x_size, threads * kRun)) {
    launch(uint32_t{});
  } else {
    launch(uint64_t{});
  }
  return cudaGetLastError();
}

template <typename Word>
cudaError_t LaunchIm2Col(cudaStream_t stream, const ConvGeometry& g,
                         int64_t samples, const void* x, void* cols,
                         int64_t element_bytes) {
  const int64_t vector_size = sizeof(Word) / element_bytes;
  const int64_t words =
      samples * g.output_pixels() * g.taps() * g.C / vector_size;
  // Runs save index arithmetic, but a small problem needs all the threads.
  if (words >= kManyWords) {
    return LaunchIm2Col<Word, 8>(stream, g, samples, vector_size, x, cols);
  }
  return LaunchIm2Col<Word, 1>(stream, g, samples, vector_size, x, cols);
}

// One thread kVector channels of one pixel of dx.
template <typename T, int kVector, typename Index>
__global__ void __launch_bounds__(kThreads)
    Col2ImKernel(const __grid_constant__ Shape<Index> shape,
                 const Vector<Accumulator<T>, kVector>* __restrict__ dcols,
                 Vector<T, kVector>* __restrict__ dx) {
  using Acc = Accumulator<T>;
  const Index at = Index{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= shape.threads) return;
  Index rest = at;
  Index group = TakeDigit(shape.channels, rest);
  const Index c = TakeDigit(shape.group_channels, group);
  const Index w = TakeDigit(shape.w.input_radix, rest);
  const Index h = TakeDigit(shape.h.input_radix, rest);
  const Index d = TakeDigit(shape.d.input_radix, rest);
  const Index sample = group * shape.samples.divisor() + rest;
  const Index group_channels = shape.group_channels.divisor();
  Acc sum[kVector] = {};
  const auto first_h = shape.h.FirstReader(h);
  const auto first_w = shape.w.FirstReader(w);
  for (auto t = shape.d.FirstReader(d); shape.d.Valid(t); shape.d.Advance(t)) {
    if (t.out >= shape.d.output_size) continue;
    for (auto r = first_h; shape.h.Valid(r); shape.h.Advance(r)) {
      if (r.out >= shape.h.output_size) continue;
      const Index row =
          (sample * shape.d.output_size + t.out) * shape.h.output_size + r.out;
      const Index row_tap =
          (t.tap * shape.h.filter_size + r.tap) * shape.w.filter_size;
      for (auto s = first_w; shape.w.Valid(s);) {
        // Zeros where there is nothing to add: adding them changes nothing.
        Vector<Acc, kVector> entries[kUnroll] = {};
#pragma unroll
        for (int u = 0; u < kUnroll; ++u, shape.w.Advance(s)) {
          if (!shape.w.Valid(s) || s.out >= shape.w.output_size) continue;
          const Index pixel = row * shape.w.output_size + s.out;
          entries[u] =
              dcols[(pixel * shape.taps + row_tap + s.tap) * group_channels +
                    c];
        }
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
          for (int i = 0; i < kVector; ++i) sum[i] += entries[u].values[i];
        }
      }
    }
  }
  Vector<T, kVector> result;
#pragma unroll
  for (int i = 0; i < kVector; ++i) result.values[i] = Convert<T>(sum[i]);
  dx[at] = result;
}

template <typename T, int kVector>
cudaError_t LaunchCol2Im(cudaStream_t stream, const ConvGeometry& g,
                         int64_t samples, const void* dcols, void* dx) {
  const int64_t size = samples * g.input_pixels() * g.C / kVector;
  const int64_t cols_size =
      samples * g.output_pixels() * g.taps() * g.C / kVector;
  auto launch = [&](auto index) {
    using Index = decltype(index);
    const Shape<Index> shape(g, samples, kVector, size);
    Col2ImKernel<T, kVector, Index>
        <<<Blocks(size, kThreads), kThreads, 0, stream>>>(
            shape, static_cast<const Vector<Accumulator<T>, kVector>*>(dcols),
            static_cast<Vector<T, kVector>*>(dx));
  };
  if (FitsInt32(g, size, cols_size)) {
    launch(uint32_t{});
  } else {
    launch(uint64_t{});
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t Im2Col(cudaStream_t stream, const ConvGeometry& g, int64_t samples,
                   int64_t element_bytes, const void* x, void* cols) {
  const int64_t bytes = g.group_C() * element_bytes;
  if (bytes % 16 == 0) {
    return LaunchIm2Col<uint4>(stream, g, samples, x, cols, element_bytes);
  }
  if (bytes % 8 == 0) {
    return LaunchIm2Col<uint2>(stream, g, samples, x, cols, element_bytes);
  }
  if (bytes % 4 == 0) {
    return LaunchIm2Col<uint32_t>(stream, g, samples, x, cols, element_bytes);
  }
  return LaunchIm2Col<uint16_t>(stream, g, samples, x, cols, element_bytes);
}

cudaError_t Col2Im(cudaStream_t stream, const ConvGeometry& g, int64_t samples,
                   xla::ffi::DataType dtype, const void* dcols, void* dx) {
  return DispatchDtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr int kVector = 16 / sizeof(Accumulator<T>);
    if (g.group_C() % kVector == 0) {
      return LaunchCol2Im<T, kVector>(stream, g, samples, dcols, dx);
    }
    return LaunchCol2Im<T, 1>(stream, g, samples, dcols, dx);
  });
}

}  // namespace jax_convbatch
