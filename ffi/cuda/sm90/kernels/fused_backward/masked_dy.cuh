// SPDX-License-Identifier: Apache-2.0
// dz as the left operand of a product, in registers: dy from shared memory, as
// the multiplier takes it, and zero where relu's derivative is. 64 rows and 64
// columns of it, of which each warp has 16 rows.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_FUSED_BACKWARD_MASKED_DY_CUH_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_FUSED_BACKWARD_MASKED_DY_CUH_

#include <cstdint>
#include <type_traits>

#include "cuda/sm90/arch/ptx.cuh"
#include "cuda/sm90/epilogue/epilogue.cuh"

namespace jax_convbatch::hopper {

// Two elements of 16 bits, all ones where the highest bit of byte j of `low`,
// of `high` is set, else zeros.
template <int j>
__device__ __forceinline__ uint32_t PairMask(uint32_t low, uint32_t high) {
  uint32_t mask;
  asm("prmt.b32 %0, %1, %2, %3;"
      : "=r"(mask)
      : "r"(low), "r"(high), "n"((8 + j) * 0x0011 + (12 + j) * 0x1100));
  return mask;
}

// ---- rows are pixels --------------------------------------------------------

// Of eight bytes of a row's bitmask, those that this thread's columns have, in
// the highest bits of the bytes.
struct RowBitmask {
  uint32_t low[2], high[2];

  __device__ RowBitmask(uint32_t first, uint32_t second, int shift)
      : low{first << shift << 1, second << shift << 1},
        high{first << shift, second << shift} {}

  template <int j>  // of the eight bytes
  __device__ uint32_t Mask() const {
    return PairMask<j % 4>(low[j / 4], high[j / 4]);
  }
};

// dz of 16 of the rows and 64 channels of a warp. `row` is where the lane's row
// of dy lies; first, second: the bitmask of its rows of the product.
__device__ __forceinline__ void LoadDz(uint32_t (&dz)[4][4], uint32_t row,
                                       int swizzle, const RowBitmask& first,
                                       const RowBitmask& second) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    LoadMatrix4(row + ((i * 2 << 4) ^ swizzle), dz[i]);
  }
  auto mask = [&](uint32_t (&v)[4], auto j) {
    constexpr int kJ = decltype(j)::value;
    v[0] &= first.template Mask<kJ>();
    v[1] &= second.template Mask<kJ>();
    v[2] &= first.template Mask<kJ + 1>();
    v[3] &= second.template Mask<kJ + 1>();
  };
  mask(dz[0], std::integral_constant<int, 0>());
  mask(dz[1], std::integral_constant<int, 2>());
  mask(dz[2], std::integral_constant<int, 4>());
  mask(dz[3], std::integral_constant<int, 6>());
}

// To where LoadDz had it from.
__device__ __forceinline__ void WriteDz(const uint32_t (&dz)[4][4],
                                        uint32_t row, int swizzle) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    StoreMatrix4(row + ((i * 2 << 4) ^ swizzle), dz[i][0], dz[i][1], dz[i][2],
                 dz[i][3]);
  }
  FenceAsyncProxy();
}

// ---- rows are output channels -----------------------------------------------

__device__ __forceinline__ uint32_t LoadSharedHalf(uint32_t address) {
  uint16_t v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(address) : "memory");
  return v;
}

// dz of 64 pixels and the warp's 16 channels. `dy`: of the lane's row;
// `bitmask`: of the warp's channels and the thread's first pixel, whose rows
// are 16 bytes each.
__device__ __forceinline__ void LoadDzTransposed(uint32_t (&dz)[4][4],
                                                 uint32_t dy, uint32_t bitmask,
                                                 int shift) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    LoadMatrix4Transposed(dy + i * 16 * 128, dz[i]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t pixel = bitmask + (i * 16 + half * 8) * 16;
      const uint32_t low = LoadSharedHalf(pixel) << shift;
      const uint32_t high = LoadSharedHalf(pixel + 16) << shift;
      dz[i][half * 2] &= PairMask<0>(low, high);
      dz[i][half * 2 + 1] &= PairMask<1>(low, high);
    }
  }
}

// Adds it to the sums of the thread's two channels, of the even and the odd
// pixels.
template <typename T>
__device__ __forceinline__ void AddDb(const uint32_t (&dz)[4][4],
                                      float (&db)[2][2]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 pair = Unpack<T>(dz[i][j]);
      db[j % 2][0] += pair.x;
      db[j % 2][1] += pair.y;
    }
  }
}

// The sum of a channel, from the four lanes that have its pixels.
__device__ __forceinline__ float DbOfFour(const float (&db)[2]) {
  float sum = db[0] + db[1];
  sum += __shfl_xor_sync(~0u, sum, 1);
  sum += __shfl_xor_sync(~0u, sum, 2);
  return sum;
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_FUSED_BACKWARD_MASKED_DY_CUH_
