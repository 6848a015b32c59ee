// SPDX-License-Identifier: Apache-2.0
// Results of fprop and dgrad that are not finite, formed again from the
// definition, in place. Kernels that multiply zeros of a filter with numbers
// that a result does not depend on leave such ones where these are infinite or
// NaN (jax_convbatch/_plans/folded.py). One pass that reads the results; where
// all are finite it writes nothing.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "conv_geometry.h"
#include "cuda/common/dependent_launch.cuh"
#include "cuda/common/dtypes.h"
#include "cuda/common/floats.h"
#include "cuda/common/status.h"
#include "cuda/handlers/handlers.h"
#include "ffi_checks.h"

namespace jax_convbatch {
namespace {

constexpr int kThreads = 256;
// Eight for each multiprocessor of an H200.
constexpr int64_t kMostBlocks = 8 * 132;

// A convolution of one group whose input is not dilated.
template <typename T, bool kDgrad>
struct Definition {
  ConvGeometry g;
  const T *a, *w;

  // The pixel of `a` along an axis that meets an output's `at` at a tap; none
  // where negative.
  __device__ static int64_t Met(int64_t at, int64_t tap, int64_t stride,
                                int64_t pad, int64_t dilation, int64_t size) {
    const int64_t shifted =
        kDgrad ? at + pad - tap * dilation : at * stride - pad + tap * dilation;
    if (shifted < 0) return -1;
    if (!kDgrad) return shifted < size ? shifted : -1;
    const int64_t pixel = shifted / stride;
    return pixel * stride == shifted && pixel < size ? pixel : -1;
  }

  // Of the result's element, in the order of taps and channels.
  __device__ float Sum(int64_t element) const {
    const int64_t channels = kDgrad ? g.C : g.K;
    const int64_t contracted = kDgrad ? g.K : g.C;
    const int64_t depth = kDgrad ? g.D : g.O, height = kDgrad ? g.H : g.P;
    const int64_t width = kDgrad ? g.W : g.Q;
    const int64_t a_depth = kDgrad ? g.O : g.D, a_height = kDgrad ? g.P : g.H;
    const int64_t a_width = kDgrad ? g.Q : g.W;
    const int64_t channel = element % channels;
    int64_t pixel = element / channels;
    const int64_t x = pixel % width;
    pixel /= width;
    const int64_t y = pixel % height;
    pixel /= height;
    const int64_t z = pixel % depth, n = pixel / depth;
    float sum = 0.0f;
    for (int64_t t = 0; t < g.T; ++t) {
      const int64_t o =
          Met(z, t, g.stride.d, g.pad.d, g.filter_dilation.d, a_depth);
      if (o < 0) continue;
      for (int64_t r = 0; r < g.R; ++r) {
        const int64_t p =
            Met(y, r, g.stride.h, g.pad.h, g.filter_dilation.h, a_height);
        if (p < 0) continue;
        for (int64_t s = 0; s < g.S; ++s) {
          const int64_t q =
              Met(x, s, g.stride.w, g.pad.w, g.filter_dilation.w, a_width);
          if (q < 0) continue;
          const T* from =
              a +
              (((n * a_depth + o) * a_height + p) * a_width + q) * contracted;
          const T* filter = w + ((t * g.R + r) * g.S + s) * g.C * g.K;
          filter += kDgrad ? channel * g.K : channel;
          const int64_t step = kDgrad ? 1 : g.K;
          for (int64_t i = 0; i < contracted; ++i) {
            sum += Convert<float>(from[i]) * Convert<float>(filter[i * step]);
          }
        }
      }
    }
    return sum;
  }
};

template <typename T, bool kDgrad>
__global__ void __launch_bounds__(kThreads)
    NotFiniteKernel(Definition<T, kDgrad> definition, T* out, int64_t count) {
  constexpr int kVector = 16 / sizeof(T);
  WaitForPrimary();
  const int64_t step = int64_t{gridDim.x} * kThreads * kVector;
  for (int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kVector;
       at < count; at += step) {
    const int64_t end = min(at + kVector, count);
    bool finite = at + kVector <= count;
    if (finite) {
      using V = Vector<T, kVector>;
      const V values = *reinterpret_cast<const V*>(out + at);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        finite &= static_cast<bool>(isfinite(Convert<float>(values.values[i])));
      }
    }
    if (finite) continue;
#pragma unroll 1
    for (int64_t i = at; i < end; ++i) {
      if (!isfinite(Convert<float>(out[i]))) {
        out[i] = Convert<T>(definition.Sum(i));
      }
    }
  }
}

template <bool kDgrad>
ffi::Error NotFinite(cudaStream_t stream, ffi::AnyBuffer result,
                     ffi::AnyBuffer a, ffi::AnyBuffer w,
                     ffi::Result<ffi::AnyBuffer> out, const ConvGeometry& g) {
  const char* name = kDgrad ? "dgrad" : "fprop";
  auto where = [&] { return Describe(name, g); };
  const ffi::DataType dtype = out->element_type();
  const int64_t count = kDgrad ? g.x_size() : g.y_size();
  if ((dtype != ffi::F32 && dtype != ffi::F16 && dtype != ffi::BF16) ||
      a.element_type() != dtype || w.element_type() != dtype || g.groups != 1 ||
      result.element_type() != dtype || !g.input_dilation.all(1) ||
      static_cast<int64_t>(result.element_count()) != count ||
      static_cast<int64_t>(out->element_count()) != count ||
      static_cast<int64_t>(a.element_count()) !=
          (kDgrad ? g.y_size() : g.x_size()) ||
      static_cast<int64_t>(w.element_count()) != g.w_size()) {
    return ffi::Error::InvalidArgument(
        "jax_convbatch: unsupported dtypes or sizes of " + where());
  }
  if (count == 0) return ffi::Error::Success();
  if (result.untyped_data() != out->untyped_data()) {  // XLA may not alias them
    JCB_RETURN_IF_ERROR(ToError(
        cudaMemcpyAsync(out->untyped_data(), result.untyped_data(),
                        out->size_bytes(), cudaMemcpyDeviceToDevice, stream),
        where));
  }
  auto run = [&](auto tag) {
    using T = typename decltype(tag)::type;
    const int64_t each = kThreads * 16 / sizeof(T);
    const int64_t blocks = std::min((count + each - 1) / each, kMostBlocks);
    const Definition<T, kDgrad> definition{
        g, static_cast<const T*>(a.untyped_data()),
        static_cast<const T*>(w.untyped_data())};
    return LaunchKernel(NotFiniteKernel<T, kDgrad>,
                        {blocks, kThreads, Start::kEarly}, stream, definition,
                        static_cast<T*>(out->untyped_data()), count);
  };
  return ToError(dtype == ffi::BF16  ? run(TypeTag<__nv_bfloat16>())
                 : dtype == ffi::F16 ? run(TypeTag<__half>())
                                     : run(TypeTag<float>()),
                 where);
}

auto BindNotFinite() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::PlatformStream<cudaStream_t>>()
      .Arg<ffi::AnyBuffer>()  // result
      .Arg<ffi::AnyBuffer>()  // x or dy
      .Arg<ffi::AnyBuffer>()  // w
      .Ret<ffi::AnyBuffer>()
      .Attr<ConvGeometry>("geometry");
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(CudaFpropNotFiniteExecute, NotFinite<false>,
                              BindNotFinite(),
                              {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER_SYMBOL(CudaDgradNotFiniteExecute, NotFinite<true>,
                              BindNotFinite(),
                              {ffi::Traits::kCmdBufferCompatible});

}  // namespace jax_convbatch
