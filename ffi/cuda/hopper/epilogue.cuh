// The epilogue of a tile in the multiplying warpgroup's registers.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_EPILOGUE_CUH_
#define JAX_CONVBATCH_CUDA_HOPPER_EPILOGUE_CUH_

#include "cuda/hopper/epilogue.h"
#include "cuda/hopper/pipeline.cuh"

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

__device__ __forceinline__ float MaxOrNan(float a, float b) {
  float v;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(v) : "f"(a), "f"(b));
  return v;
}

__device__ __forceinline__ float MinOrNan(float a, float b) {
  float v;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(v) : "f"(a), "f"(b));
  return v;
}

// An activation that is not smooth. The inner maximum is 0 where slope z is nan
// for relu's slope of 0.
__device__ __forceinline__ float Bend(const Epilogue& e, float z) {
  return MinOrNan(MaxOrNan(z, fmaxf(e.slope * z, e.floor)), e.cap);
}

// A smooth one, of a few elements at a time: its code is long.
template <int kCount>
__device__ __forceinline__ void ActivateSmooth(Activation activation,
                                               float (&v)[kCount]) {
  auto each = [&](auto tag) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      v[i] = Activate(decltype(tag)::value, v[i]);
    }
  };
  switch (activation) {
    case Activation::kElu:
      return each(ActivationTag<Activation::kElu>());
    case Activation::kSigmoid:
      return each(ActivationTag<Activation::kSigmoid>());
    case Activation::kTanh:
      return each(ActivationTag<Activation::kTanh>());
    case Activation::kGelu:
      return each(ActivationTag<Activation::kGelu>());
    case Activation::kGeluExact:
      return each(ActivationTag<Activation::kGeluExact>());
    default:
      return each(ActivationTag<Activation::kSilu>());
  }
}

// v = the part-th kCount of acc: registers cannot be indexed.
template <int kRows, int kHalfN, int kCount>
__device__ __forceinline__ void Select(const float (&acc)[kRows][kHalfN],
                                       int part, float (&v)[kCount]) {
  static_assert(kHalfN % kCount == 0 && kRows * kHalfN <= 16 * kCount);
#define JCB_CASE(p)                                               \
  case p:                                                         \
    if constexpr ((p + 1) * kCount <= kRows * kHalfN) {           \
      _Pragma("unroll") for (int i = 0; i < kCount; ++i) {        \
        v[i] = acc[p * kCount / kHalfN][p * kCount % kHalfN + i]; \
      }                                                           \
    }                                                             \
    break;
  switch (part) {
    JCB_CASE(0)
    JCB_CASE(1)
    JCB_CASE(2)
    JCB_CASE(3)
    JCB_CASE(4)
    JCB_CASE(5)
    JCB_CASE(6)
    JCB_CASE(7)
    JCB_CASE(8)
    JCB_CASE(9)
    JCB_CASE(10)
    JCB_CASE(11)
    JCB_CASE(12)
    JCB_CASE(13)
    JCB_CASE(14)
    JCB_CASE(15)
  }
#undef JCB_CASE
}

// Packed pairs of scale and bias for the thread's columns among 64 channels.
template <typename T>
struct ChannelPairs {
  uint32_t scale[8], bias[8];

  // Of channels from `channel` on; their number is even. What columns past it
  // get is not stored.
  __device__ __forceinline__ void Load(const Epilogue& e, int channel,
                                       int channels) {
    const int k = channel + threadIdx.x % 4 * 2;
    auto load = [&](const void* from, float none, uint32_t (&to)[8]) {
#pragma unroll
      for (int j = 0; j < 8; ++j) to[j] = Pack<T>(none, none);
      if (from == nullptr) return;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int pair = min(k + 8 * j, channels - 2) / 2;
        to[j] = __ldg(static_cast<const uint32_t*>(from) + pair);
      }
    };
    load(e.scale, 1, scale);
    load(e.bias, 0, bias);
  }

  // On accumulators of 64 channels.
  __device__ __forceinline__ void Apply(float* acc) const {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 factor = Unpack<T>(scale[j]);
      const float2 term = Unpack<T>(bias[j]);
      float* v = acc + 4 * j;
      v[0] = fmaf(v[0], factor.x, term.x);
      v[1] = fmaf(v[1], factor.y, term.y);
      v[2] = fmaf(v[2], factor.x, term.x);
      v[3] = fmaf(v[3], factor.y, term.y);
    }
  }
};

// The activation of accumulators: calls store(m, j, v) for 16 columns, from
// 8 j on, of each 64 rows m.
template <int kRows, int kHalfN, typename Store>
__device__ __forceinline__ void StoreActivated(
    const Epilogue& e, const float (&acc)[kRows][kHalfN], Store store) {
  constexpr int kParts = kHalfN / 8;
  if (e.smooth) {
    // One copy of the activation's code for all.
#pragma unroll 1
    for (int part = 0; part < kRows * kParts; ++part) {
      float v[8];
      Select(acc, part, v);
      ActivateSmooth(e.activation, v);
      store(part / kParts, part % kParts * 2, v);
    }
    return;
  }
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      float v[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = Bend(e, acc[m][8 * part + i]);
      store(m, 2 * part, v);
    }
  }
}

// All before the activation, for 64 pixels from `first` on, of which `pixels`
// are there, and 64 channels. Residual and z without shared memory.
template <typename T>
__device__ __forceinline__ void PreActivate(const Epilogue& e, float (&acc)[32],
                                            int64_t first, int pixels,
                                            int channel, int channels) {
  ChannelPairs<T> pairs;
  pairs.Load(e, channel, channels);
  pairs.Apply(acc);
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
      float* v = &acc[4 * j + 2 * half];
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

// WriteTile of store_tile.cuh with an epilogue. The tile is pixels from `pixel`
// and channels from `channel` of [pixels, channels]. The residual lies in the
// buffer. What z needs goes through it, by each warp for its own rows.
template <typename T, int kRows, int kHalfN>
__device__ __forceinline__ void WriteLayerTile(
    const Epilogue& e, float (&acc)[kRows][kHalfN], uint32_t buffer,
    uint64_t* written, int pixel, int channel, int pixels, int channels) {
  const int lane = threadIdx.x % 32;
  const int warp_row = threadIdx.x % kWarpgroup / 32 * 16;
  const int row = warp_row + lane % 16;
  auto address = [&](int m, int j) {  // of 8 columns, and 8 more
    const int box = m * (kHalfN / 32) + j / 8;
    const int eight = j % 8 + lane / 16;
    return buffer + row * 128 + box * kBoxBytes + ((eight ^ row % 8) << 4);
  };
  auto store = [&](int m, int j, const float* v) {
    StoreMatrix4(address(m, j), Pack<T>(v[0], v[1]), Pack<T>(v[2], v[3]),
                 Pack<T>(v[4], v[5]), Pack<T>(v[6], v[7]));
  };

#pragma unroll
  for (int n = 0; n < kHalfN / 32; ++n) {
    ChannelPairs<T> pairs;
    pairs.Load(e, channel + 64 * n, channels);
#pragma unroll
    for (int m = 0; m < kRows; ++m) pairs.Apply(&acc[m][32 * n]);
  }
  if (e.residual != nullptr) {
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
#pragma unroll
      for (int j = 0; j < kHalfN / 4; j += 2) {
        uint32_t packed[4];
        LoadMatrix4(address(m, j), packed);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 residual = Unpack<T>(packed[i]);
          acc[m][4 * j + 2 * i] += residual.x;
          acc[m][4 * j + 2 * i + 1] += residual.y;
        }
      }
    }
  }
  if (e.z != nullptr) {
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
#pragma unroll
      for (int j = 0; j < kHalfN / 4; j += 2) store(m, j, &acc[m][4 * j]);
    }
    __syncwarp();
    const int c = channel + lane % 8 * 8;
    for (int box = 0; box < kRows * (kHalfN / 32); ++box) {
      const int m = box / (kHalfN / 32), n = box % (kHalfN / 32);
      for (int r = lane / 8; r < 16; r += 4) {
        const int at = warp_row + r;
        const int64_t p = pixel + m * 64 + at;
        if (p >= pixels || c + n * 64 >= channels) continue;
        const float4 eight = LoadShared4(buffer + box * kBoxBytes + at * 128 +
                                         ((lane % 8 ^ at % 8) << 4));
        T* z = static_cast<T*>(e.z) + p * channels + c + n * 64;
        *reinterpret_cast<float4*>(z) = eight;
      }
    }
    __syncwarp();
  }
  StoreActivated(e, acc, store);
  FenceAsyncProxy();
  __syncwarp();
  if (lane == 0) BarrierArrive(SharedAddress(written));
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_EPILOGUE_CUH_
