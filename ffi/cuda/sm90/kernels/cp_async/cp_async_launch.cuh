// SPDX-License-Identifier: Apache-2.0
// What the host side of the gathering kernels shares.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_CP_ASYNC_CP_ASYNC_LAUNCH_CUH_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_CP_ASYNC_CP_ASYNC_LAUNCH_CUH_

#include "cuda/sm90/arch/launch.cuh"
#include "cuda/sm90/kernels/cp_async/cp_async_plan.h"
#include "cuda/sm90/problem/cp_async_problem.h"

namespace jax_convbatch::hopper {

template <typename T>
struct TypeTag {
  using type = T;
};

// A dense matrix.
inline CpAsyncSource MatrixSource(const void* data, int64_t width) {
  const int vector = CommonVector(width);
  return {static_cast<const uint16_t*>(data), 1, static_cast<int>(width),
          vector, vector == 1};
}

inline CpAsyncSource SourceOfX(const ConvGeometry& g, const void* x) {
  const XRuns runs = RunsOfX(g);
  const bool whole = runs.lead == 0 && runs.length % runs.vector == 0;
  return {static_cast<const uint16_t*>(x), static_cast<int>(g.H),
          static_cast<int>(g.W * g.C), runs.vector, !whole || runs.vector == 1};
}

inline CpAsyncRuns MakeRuns(const XRuns& runs) {
  return {static_cast<int>(runs.count),
          static_cast<int>(runs.length),
          runs.lead,
          FastDivmod<uint32_t>(runs.chunks()),
          FastDivmod<uint32_t>(runs.cols),
          static_cast<int>(runs.step_h),
          static_cast<int>(runs.step_w)};
}

inline CpAsyncGrid MakeGrid(const SubproblemAxes& axes, int64_t images) {
  const SubproblemAxis &h = axes.h, &w = axes.w;
  return {FastDivmod<uint32_t>(h.count),
          FastDivmod<uint32_t>(w.count),
          static_cast<int>(images * h.count * w.count),
          static_cast<int>(h.input),
          static_cast<int>(w.input),
          h.input_step,
          w.input_step};
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_CP_ASYNC_CP_ASYNC_LAUNCH_CUH_
