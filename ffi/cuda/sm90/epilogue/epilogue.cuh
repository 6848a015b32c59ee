// SPDX-License-Identifier: Apache-2.0
// The epilogue of a tile in the multiplying warpgroup's registers.
#pragma once

#include "cuda/sm90/copy/pipeline.cuh"
#include "cuda/sm90/problem/epilogue.h"

namespace jax_convbatch::hopper {

// Two neighbours of T, the first in the low half.
template <typename T>
__device__ __forceinline__ float2 Unpack(uint32_t v) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return {__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u)};
  } else {
    return __half22float2(reinterpret_cast<const __half2&>(v));
  }
}

// The same rounded to T, at least 0; nan stays nan.
template <typename T>
__device__ __forceinline__ uint32_t PackRelu(float low, float high) {
  uint32_t v;
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
  }
  return v;
}

// All bits of a half where it is positive, none elsewhere.
template <typename T>
__device__ __forceinline__ uint32_t Positive(uint32_t packed) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __hgt2_mask(reinterpret_cast<const __nv_bfloat162&>(packed),
                       __nv_bfloat162(0.0f, 0.0f));
  } else {
    return __hgt2_mask(reinterpret_cast<const __half2&>(packed),
                       __half2(0.0f, 0.0f));
  }
}

// Both at most 6.
template <typename T>
__device__ __forceinline__ uint32_t AtMost6(uint32_t packed) {
  const uint32_t six = Pack<T>(6.0f, 6.0f);
  uint32_t v;
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    asm("min.NaN.bf16x2 %0, %1, %2;" : "=r"(v) : "r"(packed), "r"(six));
  } else {
    asm("min.NaN.f16x2 %0, %1, %2;" : "=r"(v) : "r"(packed), "r"(six));
  }
  return v;
}

// Activations of two neighbours, rounded to T.
template <typename T, Activation kActivation>
__device__ __forceinline__ uint32_t PackActivated(float low, float high) {
  if constexpr (kActivation == Activation::kRelu) {
    return PackRelu<T>(low, high);
  } else if constexpr (kActivation == Activation::kRelu6) {
    return AtMost6<T>(PackRelu<T>(low, high));
  } else {
    return Pack<T>(Activate(kActivation, low), Activate(kActivation, high));
  }
}

// Of every eight channels from `channel` on a thread's two, in one word; their
// number is even. Columns past it get anything, which is not stored.
template <int kEights>
__device__ __forceinline__ void LoadPairs(const void* from, int channel,
                                          int channels,
                                          uint32_t (&pairs)[kEights]) {
  const int first = channel / 2 + threadIdx.x % 4;
  const uint32_t* words = static_cast<const uint32_t*>(from);
  if (channel + 8 * kEights <= channels) {
    words += first;
#pragma unroll
    for (int j = 0; j < kEights; ++j) pairs[j] = __ldg(words + 4 * j);
    return;
  }
#pragma unroll
  for (int j = 0; j < kEights; ++j) {
    pairs[j] = __ldg(words + min(first + 4 * j, channels / 2 - 1));
  }
}

// The bias of a thread's columns as it lies in memory, kept while a block's
// tiles have the same channels.
template <typename T, int kEights>
struct TileBias {
  bool is_added;  // to finished sums; else they begin with it
  uint32_t pairs[kEights];
  int loaded = -1;

  __device__ __forceinline__ void Load(const void* bias, int channel,
                                       int channels) {
    if (channel == loaded) return;
    loaded = channel;
    if (bias != nullptr) {
      LoadPairs(bias, channel, channels, pairs);
    } else {
      // -0 leaves what it is added to as it is.
#pragma unroll
      for (uint32_t& pair : pairs) pair = is_added ? 0x80008000u : 0;
    }
  }
  __device__ __forceinline__ float2 operator[](int j) const {
    return Unpack<T>(pairs[j]);
  }
  // What sum number i of a row begins with.
  __device__ __forceinline__ float First(int i) const {
    const float2 two = Unpack<T>(is_added ? 0 : pairs[i / 4]);
    return i % 2 == 0 ? two.x : two.y;
  }
};

// Sums set to the bias. Rows have the same columns: what the first has is added
// to -0 for the others, in half the time of a move.
template <typename T, int kRows, int kHalfN>
__device__ __forceinline__ void BeginWithBias(
    const TileBias<T, kHalfN / 4>& bias, float minus_zero,
    float (&acc)[kRows][kHalfN]) {
  BeginSums(acc, [&](int m, int i) {
    if (m > 0) return acc[0][i] + minus_zero;
    return i % 4 < 2 ? bias.First(i) : acc[0][i - 2] + minus_zero;
  });
}

// Calls update(j, low, high) for each pair of neighbouring columns, of every
// eight number j.
template <int kRows, int kHalfN, typename Update>
__device__ __forceinline__ void ForPairs(float (&acc)[kRows][kHalfN],
                                         Update update) {
#pragma unroll
  for (int j = 0; j < kHalfN / 4; ++j) {
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
#pragma unroll
      for (int i = 4 * j; i < 4 * j + 4; i += 2) {
        update(j, acc[m][i], acc[m][i + 1]);
      }
    }
  }
}

// Accumulators times scale, plus bias.
template <typename T, int kRows, int kHalfN>
__device__ __forceinline__ void ScaleAndAdd(const Epilogue& e, int channel,
                                            int channels,
                                            const TileBias<T, kHalfN / 4>& bias,
                                            float (&acc)[kRows][kHalfN]) {
  if (e.scale == nullptr) {
    ForPairs(acc, [&](int j, float& low, float& high) {
      const float2 term = bias[j];
      low += term.x;
      high += term.y;
    });
    return;
  }
  uint32_t scale[kHalfN / 4];
  LoadPairs(e.scale, channel, channels, scale);
  ForPairs(acc, [&](int j, float& low, float& high) {
    const float2 factor = Unpack<T>(scale[j]), term = bias[j];
    low = fmaf(low, factor.x, term.x);
    high = fmaf(high, factor.y, term.y);
  });
}

// The same, where the bias is not there yet.
template <typename T, int kRows, int kHalfN>
__device__ __forceinline__ void ScaleAndAdd(const Epilogue& e, int channel,
                                            int channels,
                                            float (&acc)[kRows][kHalfN]) {
  TileBias<T, kHalfN / 4> bias{true};
  bias.Load(e.bias, channel, channels);
  ScaleAndAdd(e, channel, channels, bias, acc);
}

// Which of eight values are positive: a bit each, the first in the lowest.
template <typename T>
__device__ __forceinline__ uint8_t BitmaskOf(const float4& eight) {
  const uint32_t pairs[4] = {__float_as_uint(eight.x), __float_as_uint(eight.y),
                             __float_as_uint(eight.z),
                             __float_as_uint(eight.w)};
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    bits |= Positive<T>(pairs[i]) & (0x20001u << 2 * i);
  }
  return static_cast<uint8_t>(bits | bits >> 16);
}

// Calls store(m, j, v) with the activations of 16 columns, from 8 j on, of each
// 64 rows m, packed as StoreMatrix4 takes them.
template <typename T, int kRows, int kHalfN, typename Store>
__device__ __forceinline__ void StoreActivated(
    const Epilogue& e, const float (&acc)[kRows][kHalfN], Store store) {
  DispatchActivation(e.activation, [&](auto tag) {
    constexpr Activation kActivation = decltype(tag)::value;
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
#pragma unroll
      for (int j = 0; j < kHalfN / 4; j += 2) {
        uint32_t v[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* a = &acc[m][4 * j + 2 * i];
          v[i] = PackActivated<T, kActivation>(a[0], a[1]);
        }
        store(m, j, v);
      }
    }
  });
}

// All before the activation, for 64 pixels from `first` on, of which `pixels`
// are there, and 64 channels. Residual and z without shared memory.
template <typename T>
__device__ __forceinline__ void PreActivate(const Epilogue& e,
                                            float (&acc)[1][32], int64_t first,
                                            int pixels, int channel,
                                            int channels) {
  ScaleAndAdd<T>(e, channel, channels, acc);
  if (e.residual == nullptr && e.z == nullptr) return;
  const int lane = threadIdx.x % 32;
  const int k = channel + lane % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = threadIdx.x % kWarpgroup / 32 * 16 + lane / 4 + 8 * half;
    const int64_t line = (first + row) * channels + k;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (row >= pixels || k + 8 * j >= channels) continue;
      const int64_t at = line / 2 + 4 * j;
      float* v = &acc[0][4 * j + 2 * half];
      if (e.residual != nullptr) {
        const float2 residual =
            Unpack<T>(__ldg(static_cast<const uint32_t*>(e.residual) + at));
        v[0] += residual.x;
        v[1] += residual.y;
      }
      if (e.z != nullptr) static_cast<uint32_t*>(e.z)[at] = Pack<T>(v[0], v[1]);
    }
  }
}

}  // namespace jax_convbatch::hopper
