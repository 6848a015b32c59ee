// SPDX-License-Identifier: Apache-2.0
// f32 rounded to the nearest TF32, as TMA rounds.
#pragma once

#include <cstdint>

namespace jax_convbatch::hopper {

__device__ __forceinline__ float RoundTf32(float v) {
  uint32_t rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(v));
  return __uint_as_float(rounded);
}
__device__ __forceinline__ float4 RoundTf32(float4 v) {
  return make_float4(RoundTf32(v.x), RoundTf32(v.y), RoundTf32(v.z),
                     RoundTf32(v.w));
}

}  // namespace jax_convbatch::hopper
