// SPDX-License-Identifier: Apache-2.0
// The tensor cores' instruction for f32, of compute capability 8.0.
#pragma once

namespace jax_convbatch::hopper {

// sum[16 x 8] += a[16 x 8] b[8 x 8].
__device__ __forceinline__ void MultiplyTf32(float (&sum)[4], float a0,
                                             float a1, float a2, float a3,
                                             float b0, float b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, "
      "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(__float_as_uint(a0)), "r"(__float_as_uint(a1)),
        "r"(__float_as_uint(a2)), "r"(__float_as_uint(a3)),
        "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}

}  // namespace jax_convbatch::hopper
