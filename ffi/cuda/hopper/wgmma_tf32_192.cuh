// wgmma.cuh's multiplication of TF32 with A in registers, by 192 columns.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_WGMMA_TF32_192_CUH_
#define JAX_CONVBATCH_CUDA_HOPPER_WGMMA_TF32_192_CUH_

#include <cstdint>

namespace jax_convbatch::hopper {

#define JCB_D8(i)                                                             \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), \
      "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])

__device__ __forceinline__ void WgmmaTf32By192(float (&d)[96],
                                               const uint32_t (&a)[4],
                                               uint64_t b) {
  asm volatile(
      "{\n.reg .pred always;\nsetp.eq.u32 always, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n192k8.f32.tf32.tf32 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "
      "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "
      "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, "
      "%58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, "
      "%72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, "
      "%86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
      "{%96, %97, %98, %99}, %100, always, 1, 1;\n}\n"
      : JCB_D8(0), JCB_D8(8), JCB_D8(16), JCB_D8(24), JCB_D8(32), JCB_D8(40),
        JCB_D8(48), JCB_D8(56), JCB_D8(64), JCB_D8(72), JCB_D8(80), JCB_D8(88)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#undef JCB_D8

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_WGMMA_TF32_192_CUH_
