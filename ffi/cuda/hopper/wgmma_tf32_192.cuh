// wgmma.cuh's multiplication of TF32 with A in registers, by 192 columns.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_WGMMA_TF32_192_CUH_
#define JAX_CONVBATCH_CUDA_HOPPER_WGMMA_TF32_192_CUH_

#include <cstdint>

#include "cuda/hopper/wgmma_text.h"

namespace jax_convbatch::hopper {

__device__ __forceinline__ void WgmmaTf32By192(float (&d)[96],
                                               const uint32_t (&a)[4],
                                               uint64_t b) {
  asm volatile(
      "{\n.reg .pred always;\nsetp.eq.u32 always, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n192k8.f32.tf32.tf32 {" JCB_TEXT_96
      "}, "
      "{%96, %97, %98, %99}, %100, always, 1, 1;\n}\n"
      : JCB_D_96
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_WGMMA_TF32_192_CUH_
