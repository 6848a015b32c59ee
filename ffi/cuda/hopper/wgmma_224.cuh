// wgmma.cuh's multiplication of 16-bit elements by 224 columns.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_WGMMA_224_CUH_
#define JAX_CONVBATCH_CUDA_HOPPER_WGMMA_224_CUH_

#include "cuda/hopper/wgmma.cuh"

namespace jax_convbatch::hopper {

// The registers of D in the instruction's text and as operands.
#define JCB_TEXT                                                 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, " \
  "%14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, " \
  "%26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, " \
  "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, " \
  "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, " \
  "%62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, " \
  "%74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, " \
  "%86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, " \
  "%98, %99, %100, %101, %102, %103, %104, %105, %106, %107, "   \
  "%108, %109, %110, %111"
#define JCB_D8(i)                                                             \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), \
      "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define JCB_D32(i) JCB_D8(i), JCB_D8(i + 8), JCB_D8(i + 16), JCB_D8(i + 24)

#define JCB_WGMMA(type)                                               \
  asm volatile(                                                       \
      "{\n.reg .pred always;\nsetp.eq.u32 always, 0, 0;\n"            \
      "wgmma.mma_async.sync.aligned.m64n224k16.f32." type "." type    \
      " {" JCB_TEXT "}, %112, %113, always, 1, 1, %114, 0;\n}\n"      \
      : JCB_D32(0), JCB_D32(32), JCB_D32(64), JCB_D8(96), JCB_D8(104) \
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
#undef JCB_D32
#undef JCB_D8
#undef JCB_TEXT

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_WGMMA_224_CUH_
