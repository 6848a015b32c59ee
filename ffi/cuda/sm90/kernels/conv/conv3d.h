// SPDX-License-Identifier: Apache-2.0
// fprop and dgrad of three spatial axes in bf16 and f16 as they lie in memory:
// TMA walks slices as it walks rows. Other kernels take them as convolutions of
// two axes, from copies (depth.py).
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_CONV_CONV3D_H_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_CONV_CONV3D_H_

#include <cuda_runtime_api.h>

#include <optional>

#include "cuda/sm90/problem/op.h"
#include "cuda/sm90/problem/subproblems.h"
#include "cuda/sm90/problem/tensor_map_3d.h"

namespace jax_convbatch::hopper {

inline bool Is3d(const ConvGeometry& g) {
  return g.D != 1 || g.T != 1 || g.O != 1;
}

// How its only sub-problem reads slices, as SubproblemAxes rows and columns.
// `slices`: of an image of the input. The output's slices count as images.
struct Axes3d {
  SubproblemAxes plane;
  SubproblemAxis d;
  Activations in, out;
  int64_t slices;

  Walk3d walk(int pixels) const {
    return {InputWalk(in, plane, pixels), slices, d.input, d.upper,
            d.input_step};
  }
};
Axes3d Axes3dOf(Op op, const ConvGeometry& g);

// Nothing where there is no kernel: for wgrad, f32, one slice of taps, a dgrad
// of strides, or what TMA cannot express.
std::optional<Plan> Plan3d(Op op, const ConvGeometry& g, Type type,
                           int multiprocessors);

cudaError_t Run3d(Op op, const ConvCall& call, Stage stage,
                  cudaStream_t stream);

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_CONV_CONV3D_H_
