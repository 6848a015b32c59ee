// SPDX-License-Identifier: Apache-2.0
// Two neighbouring channels, which one thread works on: f32 in registers,
// whatever the type in memory.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace jax_convbatch::direct {

template <typename T>
__device__ float2 LoadPair(const char* at);
template <>
__device__ inline float2 LoadPair<float>(const char* at) {
  return *reinterpret_cast<const float2*>(at);
}
template <>
__device__ inline float2 LoadPair<__half>(const char* at) {
  return __half22float2(*reinterpret_cast<const __half2*>(at));
}
template <>
__device__ inline float2 LoadPair<__nv_bfloat16>(const char* at) {
  // Written out as a shift and a mask, nvcc 13.0 first loads all there is and
  // then spills.
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(at));
}

__device__ inline void Round(float2 value, float2* to) { *to = value; }
__device__ inline void Round(float2 value, __half2* to) {
  *to = __float22half2_rn(value);
}
__device__ inline void Round(float2 value, __nv_bfloat162* to) {
  *to = __float22bfloat162_rn(value);
}

template <typename T>
struct PairOf;
template <>
struct PairOf<float> {
  using type = float2;
};
template <>
struct PairOf<__half> {
  using type = __half2;
};
template <>
struct PairOf<__nv_bfloat16> {
  using type = __nv_bfloat162;
};

// Both at once where they are aligned and there are both; otherwise one by one,
// as many as there are left.
template <bool kAligned, typename T>
__device__ void StorePair(T* to, float2 value, int left) {
  typename PairOf<T>::type rounded;
  Round(value, &rounded);
  if constexpr (kAligned) {
    *reinterpret_cast<typename PairOf<T>::type*>(to) = rounded;
  } else {
    to[0] = rounded.x;
    if (left > 1) to[1] = rounded.y;
  }
}

// sum += a * b, channel by channel.
__device__ inline void MultiplyAdd(float2 a, float2 b, float2& sum) {
  sum.x = fmaf(a.x, b.x, sum.x);
  sum.y = fmaf(a.y, b.y, sum.y);
}

}  // namespace jax_convbatch::direct
