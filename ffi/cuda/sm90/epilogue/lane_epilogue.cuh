// SPDX-License-Identifier: Apache-2.0
// The epilogue of kernels in which a lane has 16 bytes of neighbouring channels
// of the result.
#pragma once

#include "activation_math.h"
#include "cuda/common/floats.h"
#include "cuda/sm90/epilogue/epilogue.cuh"

namespace jax_convbatch::hopper {

template <typename T>
__device__ __forceinline__ uint4 PackLane(const float (&v)[16 / sizeof(T)]) {
  if constexpr (std::is_same_v<T, float>) {
    return make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]),
                      __float_as_uint(v[2]), __float_as_uint(v[3]));
  } else {
    return make_uint4(Pack<T>(v[0], v[1]), Pack<T>(v[2], v[3]),
                      Pack<T>(v[4], v[5]), Pack<T>(v[6], v[7]));
  }
}

// A lane's channels of an array of T, or `none` of each.
template <typename T>
__device__ __forceinline__ void LoadLane(const void* from, int64_t at,
                                         float none,
                                         float (&to)[16 / sizeof(T)]) {
  constexpr int kLane = 16 / sizeof(T);
  Vector<T, kLane> v;
  if (from != nullptr) {
    reinterpret_cast<uint4&>(v) =
        __ldg(reinterpret_cast<const uint4*>(static_cast<const T*>(from) + at));
  }
#pragma unroll
  for (int i = 0; i < kLane; ++i) {
    to[i] = from == nullptr ? none : Convert<float>(v.values[i]);
  }
}

// What follows the sums of a lane's channels; by all lanes of a warp.
template <typename T>
class LaneEpilogue {
 public:
  static constexpr int kLane = 16 / sizeof(T);

  __device__ __forceinline__ LaneEpilogue(const Epilogue& e, int channel,
                                          bool is_there)
      : e_(e), is_there_(is_there) {
    LoadLane<T>(is_there ? e.scale : nullptr, channel, 1.0f, scale_);
    LoadLane<T>(is_there ? e.bias : nullptr, channel, 0.0f, bias_);
  }

  // Stores z and bitmask from element `at` on; returns y.
  __device__ __forceinline__ uint4 Apply(bool is_there, int64_t at,
                                         float (&v)[kLane]) const {
    is_there &= is_there_;
    float residual[kLane];
    LoadLane<T>(is_there ? e_.residual : nullptr, at, 0.0f, residual);
#pragma unroll
    for (int i = 0; i < kLane; ++i) {
      v[i] = fmaf(v[i], scale_[i], bias_[i]) + residual[i];
    }
    if (e_.z != nullptr && is_there) {
      *reinterpret_cast<uint4*>(static_cast<T*>(e_.z) + at) = PackLane<T>(v);
    }
    DispatchActivation(e_.activation, [&](auto tag) {
#pragma unroll
      for (float& value : v) value = Activate(decltype(tag)::value, value);
    });
    const uint4 y = PackLane<T>(v);
    if (e_.bitmask != nullptr) StoreBitmask(is_there, at, y);
    return y;
  }

 private:
  __device__ __forceinline__ void StoreBitmask(bool is_there, int64_t at,
                                               const uint4& y) const {
    if constexpr (std::is_same_v<T, float>) {
      const uint32_t words[4] = {y.x, y.y, y.z, y.w};
      uint32_t bits = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        bits |= (__uint_as_float(words[i]) > 0) << i;
      }
      bits |= __shfl_down_sync(~0u, bits, 1) << 4;
      if (is_there && threadIdx.x % 2 == 0) {
        e_.bitmask[at / 8] = static_cast<uint8_t>(bits);
      }
    } else if (is_there) {
      e_.bitmask[at / 8] =
          BitmaskOf<T>(make_float4(__uint_as_float(y.x), __uint_as_float(y.y),
                                   __uint_as_float(y.z), __uint_as_float(y.w)));
    }
  }

  const Epilogue& e_;
  bool is_there_;
  float scale_[kLane], bias_[kLane];
};

}  // namespace jax_convbatch::hopper
