// The engine implicit_gemm's plans, for Python.
#ifndef JAX_CONVBATCH_CUDA_IMPLICIT_GEMM_PLAN_H_
#define JAX_CONVBATCH_CUDA_IMPLICIT_GEMM_PLAN_H_

#include <nanobind/nanobind.h>

#include <string>

namespace jax_convbatch {

// `geometry` is what jax_convbatch/geometry.py passes to the handlers, `dtype`
// "bfloat16", "float16" or "float32" (multiplied as TF32). None
// where the engine does not support it, otherwise a dict: workspace (bytes),
// tile ("128x256": pixels or filter rows by channels), path ("tiles", "gathered
// tiles" or "strips": see hopper/conv.h), blocks (thread
// blocks), preferred (whether it beats columns).
nanobind::object ImplicitGemmPlan(nanobind::str op, nanobind::dict geometry,
                                  nanobind::str dtype, int multiprocessors);

}  // namespace jax_convbatch

#endif  // JAX_CONVBATCH_CUDA_IMPLICIT_GEMM_PLAN_H_
