// wgmma.cuh's multiplication of 16-bit elements by 224 columns.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_WGMMA_224_CUH_
#define JAX_CONVBATCH_CUDA_HOPPER_WGMMA_224_CUH_

#include "cuda/hopper/wgmma.cuh"

namespace jax_convbatch::hopper {

#define JCB_WGMMA(type)                                              \
  asm volatile(                                                      \
      "{\n.reg .pred always;\nsetp.eq.u32 always, 0, 0;\n"           \
      "wgmma.mma_async.sync.aligned.m64n224k16.f32." type "." type   \
      " {" JCB_TEXT_112 "}, %112, %113, always, 1, 1, %114, 0;\n}\n" \
      : JCB_D_112                                                    \
      : "l"(a), "l"(b), "n"(kTransposeA))

// d += a b, with b Contiguous::kReduction.
template <typename T, Contiguous kA>
__device__ __forceinline__ void Wgmma224(float (&d)[112], uint64_t a,
                                         uint64_t b) {
  constexpr int kTransposeA = kA == Contiguous::kRows;
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    JCB_WGMMA("bf16");
  } else {
    static_assert(std::is_same_v<T, __half>);
    JCB_WGMMA("f16");
  }
}

#undef JCB_WGMMA

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_WGMMA_224_CUH_
