// wgmma_registers.cuh's multiplication by 64, 128 or 256 columns: D[64, kN] +=
// A[64, 16] B[16, kN], A in registers, B as Contiguous says.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_WGMMA_WIDE_REGISTERS_CUH_
#define JAX_CONVBATCH_CUDA_HOPPER_WGMMA_WIDE_REGISTERS_CUH_

#include "cuda/hopper/wgmma.cuh"

namespace jax_convbatch::hopper {

#define JCB_TEXT_32                                                   \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, " \
  "%15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, " \
  "%28, %29, %30, %31"
#define JCB_TEXT_64                                                   \
  JCB_TEXT_32                                                         \
  ", "                                                                \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, "                     \
  "%41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, " \
  "%54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define JCB_TEXT_128                                                     \
  JCB_TEXT_64                                                            \
  ", "                                                                   \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, "    \
  "%77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, "    \
  "%90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, " \
  "%103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, "   \
  "%114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, "   \
  "%125, %126, %127"
#define JCB_D8(i)                                                             \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), \
      "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define JCB_D32(i) JCB_D8(i), JCB_D8(i + 8), JCB_D8(i + 16), JCB_D8(i + 24)
#define JCB_D_32 JCB_D32(0)
#define JCB_D_64 JCB_D32(0), JCB_D32(32)
#define JCB_D_128 JCB_D_64, JCB_D32(64), JCB_D32(96)
#define JCB_WGMMA(type, n, registers, a0, a1, a2, a3, b_, t_)               \
  asm volatile(                                                             \
      "{\n.reg .pred always;\nsetp.eq.u32 always, 0, 0;\n"                  \
      "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type       \
      " {" JCB_TEXT_##registers "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3   \
                                "}, %" #b_ ", always, 1, 1, %" #t_ ";\n}\n" \
      : JCB_D_##registers                                                   \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),                 \
        "n"(kB == Contiguous::kRows))

template <typename T, Contiguous kB, int kN>
__device__ __forceinline__ void WgmmaRegisters(float (&d)[kN / 2],
                                               const uint32_t (&a)[4],
                                               uint64_t b) {
  constexpr bool kBf16 = std::is_same_v<T, __nv_bfloat16>;
  static_assert(kBf16 || std::is_same_v<T, __half>);
  static_assert(kN == 64 || kN == 128 || kN == 256);
  if constexpr (kBf16 && kN == 64) {
    JCB_WGMMA("bf16", 64, 32, 32, 33, 34, 35, 36, 37);
  } else if constexpr (kBf16 && kN == 128) {
    JCB_WGMMA("bf16", 128, 64, 64, 65, 66, 67, 68, 69);
  } else if constexpr (kBf16) {
    JCB_WGMMA("bf16", 256, 128, 128, 129, 130, 131, 132, 133);
  } else if constexpr (kN == 64) {
    JCB_WGMMA("f16", 64, 32, 32, 33, 34, 35, 36, 37);
  } else if constexpr (kN == 128) {
    JCB_WGMMA("f16", 128, 64, 64, 65, 66, 67, 68, 69);
  } else {
    JCB_WGMMA("f16", 256, 128, 128, 129, 130, 131, 132, 133);
  }
}

#undef JCB_WGMMA
#undef JCB_D_128
#undef JCB_D_64
#undef JCB_D_32
#undef JCB_D32
#undef JCB_D8
#undef JCB_TEXT_128
#undef JCB_TEXT_64
#undef JCB_TEXT_32

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_WGMMA_WIDE_REGISTERS_CUH_
