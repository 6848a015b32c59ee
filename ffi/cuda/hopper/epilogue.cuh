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

// Accumulators of 64 channels from `channel` on times scale, plus bias: kRows
// times 32 of them, `apart` from each other. The number of channels is even;
// what columns past it get is not stored.
template <typename T, int kRows>
__device__ __forceinline__ void ScaleAndAdd(const Epilogue& e, int channel,
                                            int channels, float* acc,
                                            int apart) {
  auto load = [&](const void* from, uint32_t (&pairs)[8]) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int k = channel + threadIdx.x % 4 * 2 + 8 * j;
      pairs[j] =
          __ldg(static_cast<const uint32_t*>(from) + min(k, channels - 2) / 2);
    }
  };
  auto each = [&](auto update) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int m = 0; m < kRows; ++m) {
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
          update(j, acc[m * apart + 4 * j + i], acc[m * apart + 4 * j + i + 1]);
        }
      }
    }
  };
  uint32_t scale[8], bias[8];
  if (e.scale == nullptr) {
    if (e.bias == nullptr) return;
    load(e.bias, bias);
    each([&](int j, float& low, float& high) {
      const float2 term = Unpack<T>(bias[j]);
      low += term.x;
      high += term.y;
    });
    return;
  }
  load(e.scale, scale);
  if (e.bias != nullptr) {
    load(e.bias, bias);
  } else {
#pragma unroll
    for (uint32_t& pair : bias) pair = 0;
  }
  each([&](int j, float& low, float& high) {
    const float2 factor = Unpack<T>(scale[j]), term = Unpack<T>(bias[j]);
    low = fmaf(low, factor.x, term.x);
    high = fmaf(high, factor.y, term.y);
  });
}

// Which of eight values are positive: a bit each, the first in the lowest.
template <typename T>
__device__ __forceinline__ uint8_t SignsOf(const float4& eight) {
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

// The same for relu, whose signs go to `words`: for each 64 rows m, of the row
// lane / 4 and then of that 8 further on, a word for every 32 columns. A thread
// sets the bits of its own columns.
template <typename T, int kRows, int kHalfN, typename Store>
__device__ __forceinline__ void StoreReluSigns(
    const float (&acc)[kRows][kHalfN], Store store,
    uint32_t (&words)[kRows][kHalfN / 8]) {
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
#pragma unroll
    for (int w = 0; w < kHalfN / 16; ++w) {
      // Two eights of columns each; even columns in the low half.
      uint32_t bits[2][2] = {};
#pragma unroll
      for (int j = 0; j < 4; j += 2) {
        uint32_t v[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* a = &acc[m][4 * (4 * w + j) + 2 * i];
          v[i] = PackRelu<T>(a[0], a[1]);
          bits[i % 2][j / 2] |=
              Positive<T>(v[i]) & (i / 2 == 0 ? 0x00010001u : 0x01000100u);
        }
        store(m, 4 * w + j, v);
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint32_t even = __byte_perm(bits[h][0], bits[h][1], 0x5410);
        const uint32_t odd = __byte_perm(bits[h][0], bits[h][1], 0x7632);
        words[m][h * (kHalfN / 16) + w] = (even | odd << 1)
                                          << threadIdx.x % 4 * 2;
      }
    }
  }
}

// Adds up what four neighbouring threads have of four words; each gets the word
// of its own number.
__device__ __forceinline__ uint32_t GatherBits(const uint32_t* words) {
  const bool odd = threadIdx.x % 2 != 0, high = threadIdx.x / 2 % 2 != 0;
  uint32_t kept[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t low = words[2 * i], up = words[2 * i + 1];
    kept[i] = (odd ? up : low) | __shfl_xor_sync(~0u, odd ? low : up, 1);
  }
  return (high ? kept[1] : kept[0]) |
         __shfl_xor_sync(~0u, high ? kept[0] : kept[1], 2);
}

// The words of StoreReluSigns, of a warp's rows from `row` on of each 64.
template <int kRows, int kWords>
__device__ __forceinline__ void WriteSigns(
    uint8_t* signs, const uint32_t (&words)[kRows][kWords], int64_t pixel,
    int row, int channel, int pixels, int channels) {
  constexpr int kPerRow = kWords / 2;
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
#pragma unroll
    for (int g = 0; g < kWords; g += 4) {
      const uint32_t word = GatherBits(&words[m][g]);
      const int number = g + threadIdx.x % 4;
      const int64_t p = pixel + m * 64 + row + number / kPerRow * 8;
      const int c = channel + number % kPerRow * 32;
      if (p >= pixels || c >= channels) continue;
      uint8_t* const to = signs + (p * channels + c) / 8;
      if (channels % 32 == 0) {
        *reinterpret_cast<uint32_t*>(to) = word;
      } else {
        for (int i = 0; i < min(4, (channels - c) / 8); ++i) {
          to[i] = static_cast<uint8_t>(word >> 8 * i);
        }
      }
    }
  }
}

// All before the activation, for 64 pixels from `first` on, of which `pixels`
// are there, and 64 channels. Residual and z without shared memory.
template <typename T>
__device__ __forceinline__ void PreActivate(const Epilogue& e, float (&acc)[32],
                                            int64_t first, int pixels,
                                            int channel, int channels) {
  ScaleAndAdd<T, 1>(e, channel, channels, acc, 0);
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
  auto store = [&](int m, int j, const uint32_t (&v)[4]) {
    StoreMatrix4(address(m, j), v[0], v[1], v[2], v[3]);
  };

#pragma unroll
  for (int n = 0; n < kHalfN / 32; ++n) {
    ScaleAndAdd<T, kRows>(e, channel + 64 * n, channels, &acc[0][32 * n],
                          kHalfN);
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
      for (int j = 0; j < kHalfN / 4; j += 2) {
        const float* v = &acc[m][4 * j];
        StoreMatrix4(address(m, j), Pack<T>(v[0], v[1]), Pack<T>(v[2], v[3]),
                     Pack<T>(v[4], v[5]), Pack<T>(v[6], v[7]));
      }
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
  auto leave = [&] {
    FenceAsyncProxy();
    __syncwarp();
    if (lane == 0) BarrierArrive(SharedAddress(written));
  };
  if (e.signs == nullptr) {
    StoreActivated<T>(e, acc, store);
    leave();
  } else {
    uint32_t words[kRows][kHalfN / 8];
    StoreReluSigns<T>(acc, store, words);
    leave();
    WriteSigns(e.signs, words, pixel, warp_row + lane / 4, channel, pixels,
               channels);
  }
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_EPILOGUE_CUH_
