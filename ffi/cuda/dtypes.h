// What the kernels need to know of the four floating dtypes.
#ifndef JAX_CONVBATCH_CUDA_DTYPES_H_
#define JAX_CONVBATCH_CUDA_DTYPES_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "xla/ffi/api/ffi.h"

namespace jax_convbatch {

// What sums of T are accumulated in.
template <typename T>
struct AccumulatorOf {
  using type = float;
};
template <>
struct AccumulatorOf<double> {
  using type = double;
};
template <typename T>
using Accumulator = typename AccumulatorOf<T>::type;

#ifdef __CUDACC__

template <typename To, typename From>
__device__ To Convert(From value) {
  return static_cast<To>(value);
}
template <>
__device__ inline float Convert(__half value) {
  return __half2float(value);
}
template <>
__device__ inline float Convert(__nv_bfloat16 value) {
  return __bfloat162float(value);
}
template <>
__device__ inline __half Convert(float value) {
  return __float2half_rn(value);
}
template <>
__device__ inline __nv_bfloat16 Convert(float value) {
  return __float2bfloat16_rn(value);
}

// kSize values that are loaded and stored at once.
template <typename T, int kSize>
struct alignas(kSize * sizeof(T)) Vector {
  T values[kSize];
};

#endif  // __CUDACC__

template <typename T>
struct TypeTag {
  using type = T;
};

// Calls f(TypeTag<T>) with the C++ type of `dtype`, which must be one of the
// four floating dtypes (SupportedDtype).
template <typename F>
auto DispatchDtype(xla::ffi::DataType dtype, F&& f) {
  switch (dtype) {
    case xla::ffi::F64:
      return f(TypeTag<double>());
    case xla::ffi::F16:
      return f(TypeTag<__half>());
    case xla::ffi::BF16:
      return f(TypeTag<__nv_bfloat16>());
    default:
      return f(TypeTag<float>());
  }
}

inline bool SupportedDtype(xla::ffi::DataType dtype) {
  return dtype == xla::ffi::F64 || dtype == xla::ffi::F32 ||
         dtype == xla::ffi::F16 || dtype == xla::ffi::BF16;
}

}  // namespace jax_convbatch

#endif  // JAX_CONVBATCH_CUDA_DTYPES_H_
