// wgmma.cuh's multiplication of TF32 by other numbers of columns.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_WGMMA_TF32_COLUMNS_CUH_
#define JAX_CONVBATCH_CUDA_HOPPER_WGMMA_TF32_COLUMNS_CUH_

#include "cuda/hopper/wgmma.cuh"
#include "cuda/hopper/wgmma_text.h"

namespace jax_convbatch::hopper {

// As in wgmma_text.h.
#define JCB_TEXT_80                                                \
  JCB_TEXT_64                                                      \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, " \
  "%76, %77, %78, %79"
#define JCB_D_80 JCB_D_64, JCB_D16(64)

#define JCB_WGMMA(n, registers, b_)                                         \
  asm volatile(                                                             \
      "{\n.reg .pred always;\nsetp.eq.u32 always, 0, 0;\n"                  \
      "wgmma.mma_async.sync.aligned.m64n" #n                                \
      "k8.f32.tf32.tf32 {" JCB_TEXT_##registers "}, %" #registers ", %" #b_ \
                                                ", always, 1, 1;\n}\n"      \
      : JCB_D_##registers                                                   \
      : "l"(a), "l"(b))
// d += a b, both operands Contiguous::kReduction.
template <int kN>
__device__ __forceinline__ void WgmmaTf32Columns(float (&d)[kN / 2], uint64_t a,
                                                 uint64_t b) {
  if constexpr (kN == 160) {
    JCB_WGMMA(160, 80, 81);
  } else if constexpr (kN == 192) {
    JCB_WGMMA(192, 96, 97);
  } else if constexpr (kN == 224) {
    JCB_WGMMA(224, 112, 113);
  } else {
    WgmmaTf32<kN>(d, a, b);
  }
}

#undef JCB_WGMMA
#undef JCB_TEXT_80
#undef JCB_D_80

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_WGMMA_TF32_COLUMNS_CUH_
