// SPDX-License-Identifier: Apache-2.0
// A convolution's geometry as the kernels that unroll it see it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <type_traits>

#include "conv_geometry.h"
#include "cuda/common/fast_divmod.h"

namespace jax_convbatch {

// One spatial axis.
template <typename Index>
struct Axis {
  using Coordinate = std::make_signed_t<Index>;

  Coordinate stride, pad, filter_dilation, input_dilation;
  Coordinate input_size, filter_size, output_size;
  FastDivmod<Index> input_radix, filter_radix, output_radix;
  FastDivmod<Index> stride_radix, input_dilation_radix;
  // From a tap that reads some input pixel to the next that does, and how far
  // back the output pixel lies that it does it for.
  Coordinate tap_step, output_step;

  Axis(int64_t input, int64_t filter, int64_t output, int64_t stride,
       int64_t pad, int64_t input_dilation, int64_t filter_dilation)
      : stride(stride),
        pad(pad),
        filter_dilation(filter_dilation),
        input_dilation(input_dilation),
        input_size(input),
        filter_size(filter),
        output_size(output),
        // An empty x has columns too, of padding alone.
        input_radix(std::max<int64_t>(input, 1)),
        filter_radix(filter),
        output_radix(output),
        stride_radix(stride),
        input_dilation_radix(input_dilation),
        tap_step(stride / std::gcd(stride, filter_dilation)),
        output_step(filter_dilation / std::gcd(stride, filter_dilation)) {}

  // InputCoordinate of conv_geometry.h with fast division.
  __device__ Coordinate InputAt(Coordinate out, Coordinate tap) const {
    const Coordinate at = out * stride - pad + tap * filter_dilation;
    if (at < 0) return -1;
    Index quotient = at;
    if (TakeDigit(input_dilation_radix, quotient) != 0) return -1;
    const Coordinate in = quotient;
    return in < input_size ? in : -1;
  }

  // A tap and the output coordinate that reads an input coordinate with it.
  struct Reader {
    Coordinate tap, out;
  };
  // The readers of `in` are the first one and what is reached from it by
  // Advance, while Valid; those with out >= output_size do not exist.
  __device__ Reader FirstReader(Coordinate in) const {
    const Coordinate last = tap_step < filter_size ? tap_step : filter_size;
    Coordinate at = in * input_dilation + pad;
    for (Coordinate tap = 0; tap < last && at >= 0; ++tap) {
      Index out = at;
      if (TakeDigit(stride_radix, out) == 0) {
        return {tap, static_cast<Coordinate>(out)};
      }
      at -= filter_dilation;
    }
    return {filter_size, -1};
  }
  __device__ bool Valid(const Reader& reader) const {
    return reader.tap < filter_size && reader.out >= 0;
  }
  __device__ void Advance(Reader& reader) const {
    reader.tap += tap_step;
    reader.out -= output_step;
  }
};

// The geometry as the kernels see it, channels counted in vectors.
template <typename Index>
struct Shape {
  Axis<Index> d, h, w;
  FastDivmod<Index> channels, group_channels, samples;
  Index taps, threads;

  Shape(const ConvGeometry& g, int64_t sample_count, int64_t vector_size,
        int64_t thread_count)
      : d(g.D, g.T, g.O, g.stride.d, g.pad.d, g.input_dilation.d,
          g.filter_dilation.d),
        h(g.H, g.R, g.P, g.stride.h, g.pad.h, g.input_dilation.h,
          g.filter_dilation.h),
        w(g.W, g.S, g.Q, g.stride.w, g.pad.w, g.input_dilation.w,
          g.filter_dilation.w),
        channels(g.C / vector_size),
        group_channels(g.group_C() / vector_size),
        samples(sample_count),
        taps(g.taps()),
        threads(thread_count) {}
};

// Whether no number that the kernels compute passes 2^31. Coordinates get less:
// a kernel may step a few strides past the last tap before it looks.
inline bool FitsInt32(const ConvGeometry& g, int64_t x_size,
                      int64_t cols_size) {
  auto axis = [](int64_t input, int64_t filter, int64_t output, int64_t stride,
                 int64_t pad, int64_t input_dilation, int64_t filter_dilation) {
    constexpr double kLimit = 1 << 28;
    const double reach = 1.0 * filter * filter_dilation + std::abs(1.0 * pad);
    return 1.0 * output * stride + reach < kLimit &&
           1.0 * input * input_dilation + reach < kLimit &&
           1.0 * stride < kLimit && 1.0 * input_dilation < kLimit;
  };
  return x_size < std::numeric_limits<int32_t>::max() &&
         cols_size < std::numeric_limits<int32_t>::max() &&
         axis(g.D, g.T, g.O, g.stride.d, g.pad.d, g.input_dilation.d,
              g.filter_dilation.d) &&
         axis(g.H, g.R, g.P, g.stride.h, g.pad.h, g.input_dilation.h,
              g.filter_dilation.h) &&
         axis(g.W, g.S, g.Q, g.stride.w, g.pad.w, g.input_dilation.w,
              g.filter_dilation.w);
}

// The grid for one thread each of `threads`, `block` in a block.
inline unsigned Blocks(int64_t threads, int block) {
  return static_cast<unsigned>((threads + block - 1) / block);
}

}  // namespace jax_convbatch
