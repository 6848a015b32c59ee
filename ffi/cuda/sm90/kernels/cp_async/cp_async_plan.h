// SPDX-License-Identifier: Apache-2.0
// Which convolutions the gathering kernels run, and how. Host only.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_CP_ASYNC_CP_ASYNC_PLAN_H_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_CP_ASYNC_CP_ASYNC_PLAN_H_

#include <optional>

#include "cuda/sm90/problem/conv.h"
#include "cuda/sm90/problem/subproblems.h"

namespace jax_convbatch::hopper {

// 2-D, one group, no input dilation, and no number so large that an index of
// 32 bits could overflow.
bool TakesCpAsync(const ConvGeometry& g);

// For geometries that are TakesCpAsync, in bf16 and f16.
std::optional<Plan> PlanCpAsyncFprop(const ConvGeometry& g,
                                     int multiprocessors);
std::optional<Plan> PlanCpAsyncDgrad(const ConvGeometry& g,
                                     int multiprocessors);
std::optional<Plan> PlanCpAsyncWgrad(const ConvGeometry& g,
                                     int multiprocessors);

// How fprop and wgrad read x: runs of so many elements, `count` in all and
// `cols` side by side, with loads of `vector`; see CpAsyncRuns.
struct XRuns {
  int64_t count, length, cols, step_h, step_w;
  int lead, vector;

  int64_t chunks() const { return (lead + length + 7) / 8; }
  // Of the reduction, in 64 elements.
  int64_t blocks() const { return (count * chunks() + 7) / 8; }
};
XRuns RunsOfX(const ConvGeometry& g);

// The largest of 8, 4, 2 and 1 that divides all of them.
template <typename... Sizes>
int CommonVector(Sizes... sizes) {
  const int64_t all = (int64_t{8} | ... | sizes);
  return static_cast<int>(all & -all);
}

// How wgrad's product is cut: tiles of filter rows (all chunks of the runs) by
// output channels, each with one step for every 64 pixels.
struct CpAsyncTiling {
  int64_t m_tiles, n_tiles, steps;

  CpAsyncTiling(const ConvGeometry& g, int tile_m, int tile_n)
      : m_tiles((RunsOfX(g).blocks() * 64 + tile_m - 1) / tile_m),
        n_tiles((g.K + tile_n - 1) / tile_n),
        steps((g.N * g.P * g.Q + 63) / 64) {}

  int64_t tiles() const { return m_tiles * n_tiles; }
};

// The kernels of a plan that gathers; see conv.h.
cudaError_t CpAsyncFprop(const ConvCall& call, Stage stage,
                         cudaStream_t stream);
cudaError_t CpAsyncDgrad(const ConvCall& call, Stage stage,
                         cudaStream_t stream);
cudaError_t CpAsyncWgrad(const ConvCall& call, Stage stage,
                         cudaStream_t stream);

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_CP_ASYNC_CP_ASYNC_PLAN_H_
