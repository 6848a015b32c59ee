// SPDX-License-Identifier: Apache-2.0
// Rows of an image with any number of channels, on their way to shared memory.
#ifndef JAX_CONVBATCH_CUDA_SM80_SCALARS_ROWS_CUH_
#define JAX_CONVBATCH_CUDA_SM80_SCALARS_ROWS_CUH_

#include <cstdint>

#include "cuda/common/fast_divmod.h"

namespace jax_convbatch::direct {

// As many floats as are aligned, or zeros: then `from` is not read.
template <int kFloats>
__device__ __forceinline__ void CopyFloatsAsync(float* to, const float* from,
                                                bool inside) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from), "n"(kFloats * 4), "r"(inside ? kFloats * 4 : 0)
               : "memory");
}

struct ScalarRows {
  FastDivmod<uint32_t> chunk;  // channels of a pixel that are brought
  int width, channels;         // of the tensor
  int pixels;                  // of a row of a tile
  int pixel, vector, row;      // see ScalarRowShape

  // Where the first pixel lies in a row of shared memory.
  __device__ int shift(int first) const {
    return first * channels & (vector - 1);
  }
};

// A warp brings the pixels from `first` on, which may lie outside the row
// `from`, and from channel `channel` on. Vectors begin where they are aligned
// in memory, and no row begins or ends within one.
__device__ __forceinline__ void BringScalarRow(const ScalarRows& p,
                                               const float* from, bool there,
                                               int first, int channel,
                                               float* to) {
  const int lane = threadIdx.x % 32;
  if (p.vector == 1) {
    const int chunk = p.chunk.divisor();
    for (int e = lane; e < p.pixels * chunk; e += 32) {
      const int pixel = p.chunk.Divide(e), c = e - pixel * chunk;
      const int at = first + pixel;
      const bool inside =
          there && unsigned(at) < unsigned(p.width) && channel + c < p.channels;
      CopyFloatsAsync<1>(to + pixel * p.pixel + c,
                         from + at * p.channels + channel + c, inside);
    }
    return;
  }
  const int begin = first * p.channels & -p.vector;
  const int end = (first + p.pixels) * p.channels;
  const int floats = p.width * p.channels;
  for (int at = begin + lane * p.vector; at < end; at += 32 * p.vector) {
    const bool inside = there && unsigned(at) < unsigned(floats);
    if (p.vector == 4) {
      CopyFloatsAsync<4>(to + (at - begin), from + at, inside);
    } else {
      CopyFloatsAsync<2>(to + (at - begin), from + at, inside);
    }
  }
}

}  // namespace jax_convbatch::direct

#endif  // JAX_CONVBATCH_CUDA_SM80_SCALARS_ROWS_CUH_
