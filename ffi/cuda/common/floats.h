// SPDX-License-Identifier: Apache-2.0
// What the kernels need to know of the floating types.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

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

}  // namespace jax_convbatch
