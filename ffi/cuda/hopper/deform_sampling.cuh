// Sampled columns for the multiplier: warps read the corners of each pixel's
// cell, blend them in f32 and write them into swizzled boxes.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_DEFORM_SAMPLING_CUH_
#define JAX_CONVBATCH_CUDA_HOPPER_DEFORM_SAMPLING_CUH_

#include "cuda/hopper/deform.h"
#include "cuda/hopper/deform_problem.h"
#include "cuda/hopper/pipeline.cuh"

namespace jax_convbatch::hopper {

// Where and with what weights a pixel of a tap is read: pixel `at` of x is the
// upper left corner, bit k of `inside` says that corner k is in the image.
struct DeformCell {
  float4 weight;
  int at;
  uint32_t inside;
};

// What memory has of it. `image`: the first pixel of its image.
struct DeformEntry {
  float4 weight;
  int cell, image;
};

// Whatever the cell is, no pixel outside the image is called inside. An entry
// that is nowhere is 0 whatever its weights are.
__device__ __forceinline__ DeformCell Decode(const DeformProblem& problem,
                                             const DeformEntry& entry) {
  if (entry.cell < 0) return {make_float4(0, 0, 0, 0), 0, 0};
  uint32_t row = entry.cell;
  const int w = int(TakeDigit(problem.cell_row, row)) - 1;
  const int h = int(row) - 1;
  const uint32_t up = h >= 0 && h < problem.height;
  const uint32_t down = h + 1 < problem.height;
  const uint32_t left = w >= 0;  // w < width
  const uint32_t right = w + 1 < problem.width;
  return {
      entry.weight, entry.image + h * problem.width + w,
      up & left | (up & right) << 1 | (down & left) << 2 | (down & right) << 3};
}

// The sum of weights times 16 bytes of channels, rounded for the multiplier.
template <typename T>
__device__ __forceinline__ uint4 Blend(const float4& weight, const uint4& a,
                                       const uint4& b, const uint4& c,
                                       const uint4& d) {
  auto blend = [&](float a, float b, float c, float d) {
    return fmaf(weight.w, d,
                fmaf(weight.z, c, fmaf(weight.y, b, weight.x * a)));
  };
  auto word = [&](uint32_t a, uint32_t b, uint32_t c, uint32_t d) -> uint32_t {
    if constexpr (std::is_same_v<T, float>) {
      const float sum = blend(__uint_as_float(a), __uint_as_float(b),
                              __uint_as_float(c), __uint_as_float(d));
      uint32_t rounded;
      asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(sum));
      return rounded;
    } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      auto low = [](uint32_t v) { return __uint_as_float(v << 16); };
      auto high = [](uint32_t v) { return __uint_as_float(v & 0xFFFF0000u); };
      return Pack<T>(blend(low(a), low(b), low(c), low(d)),
                     blend(high(a), high(b), high(c), high(d)));
    } else {
      auto both = [](uint32_t v) {
        return __half22float2(reinterpret_cast<const __half2&>(v));
      };
      const float2 e = both(a), f = both(b), g = both(c), h = both(d);
      return Pack<T>(blend(e.x, f.x, g.x, h.x), blend(e.y, f.y, g.y, h.y));
    }
  };
  return {word(a.x, b.x, c.x, d.x), word(a.y, b.y, c.y, d.y),
          word(a.z, b.z, c.z, d.z), word(a.w, b.w, c.w, d.w)};
}

__device__ __forceinline__ void StoreShared(uint32_t to, const uint4& v) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x),
               "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

// A sampling warp has kPixels / 8 of a tile's pixels, 4 at a time: 8 lanes, 16
// bytes each, are a pixel's 128 bytes.
inline constexpr int kSamplingWarps = 8;

// A warp's cells of two stages, one being blended and the next being loaded.
template <int kPixels>
struct alignas(16) DeformTable {
  static constexpr int kRows = kPixels / kSamplingWarps;
  float4 weight[2][kRows];
  int2 place[2][kRows];  // at, inside

  // By the lanes that have a row.
  __device__ __forceinline__ void Put(int which, int lane,
                                      const DeformCell& cell) {
    weight[which][lane] = cell.weight;
    place[which][lane] = make_int2(cell.at, int(cell.inside));
  }
};

// Bytes of x.
struct DeformSource {
  const uint8_t* at;  // a lane's first channel of this stage
  int64_t pixel, row;
  bool there;  // whether the lane has channels
};

// Starts loading 16 bytes of a pixel's corners.
__device__ __forceinline__ void LoadCorners(uint4 (&corner)[4],
                                            const DeformSource& source,
                                            const int2& place) {
  const uint8_t* at = source.at + int64_t{place.x} * source.pixel;
  auto pointer = [&](int k) {
    return reinterpret_cast<const uint4*>(at + (k & 2 ? source.row : 0) +
                                          (k & 1 ? source.pixel : 0));
  };
  if (__all_sync(~0u, source.there && place.y == 15)) {
#pragma unroll
    for (int k = 0; k < 4; ++k) corner[k] = __ldg(pointer(k));
  } else {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      corner[k] = uint4{};
      if (source.there && place.y >> k & 1) corner[k] = __ldg(pointer(k));
    }
  }
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_DEFORM_SAMPLING_CUH_
