// Warpgroup matrix multiply-accumulate with A in registers: D[64, 64] +=
// A[64, 16] B[16, 64]. Thread 4 g + t of a warp has of its 16 rows g (a[0],
// a[2]) and g + 8 (a[1], a[3]), columns 2 t and 2 t + 1 (a[0], a[1]), and 8
// further (a[2], a[3]).
#ifndef JAX_CONVBATCH_CUDA_HOPPER_WGMMA_REGISTERS_CUH_
#define JAX_CONVBATCH_CUDA_HOPPER_WGMMA_REGISTERS_CUH_

#include "cuda/hopper/wgmma.cuh"

namespace jax_convbatch::hopper {

#define JCB_D8(i)                                                             \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), \
      "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define JCB_WGMMA(type)                                                     \
  asm volatile(                                                             \
      "{\n.reg .pred always;\nsetp.eq.u32 always, 0, 0;\n"                  \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type           \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, " \
      "%15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, "   \
      "%28, %29, %30, %31}, {%32, %33, %34, %35}, %36, always, 1, 1, 1;\n}" \
      : JCB_D8(0), JCB_D8(8), JCB_D8(16), JCB_D8(24)                        \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

// B is Contiguous::kRows.
template <typename T>
__device__ __forceinline__ void WgmmaRegisters(float (&d)[32],
                                               const uint32_t (&a)[4],
                                               uint64_t b) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    JCB_WGMMA("bf16");
  } else {
    static_assert(std::is_same_v<T, __half>);
    JCB_WGMMA("f16");
  }
}

#undef JCB_WGMMA
#undef JCB_D8

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_WGMMA_REGISTERS_CUH_
