// fprop and dgrad of three spatial axes in bf16 and f16 as they lie in memory:
// TMA walks slices as it walks rows. Other kernels take them as convolutions of
// two axes, from copies (depth.py).
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_CONV_DEEP_H_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_CONV_DEEP_H_

#include <cuda_runtime_api.h>

#include <optional>

#include "cuda/sm90/problem/conv_parts.h"
#include "cuda/sm90/problem/depth_map.h"
#include "cuda/sm90/problem/op.h"

namespace jax_convbatch::hopper {

inline bool IsDeep(const ConvGeometry& g) {
  return g.D != 1 || g.T != 1 || g.O != 1;
}

// How its only part reads slices, as PartAxes rows and columns. `slices`: of an
// image of the input. The output's slices count as images.
struct DeepAxes {
  PartAxes plane;
  PartAxis d;
  Activations in, out;
  int64_t slices;

  DeepWalk walk(int pixels) const {
    return {InputWalk(in, plane, pixels), slices, d.input, d.upper,
            d.input_step};
  }
};
DeepAxes DeepAxesOf(Op op, const ConvGeometry& g);

// Nothing where there is no kernel: for wgrad, f32, one slice of taps, a dgrad
// of strides, or what TMA cannot express.
std::optional<Plan> PlanDeep(Op op, const ConvGeometry& g, Type type,
                             int multiprocessors);

cudaError_t RunDeep(Op op, const ConvCall& call, Stage stage,
                    cudaStream_t stream);

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_CONV_DEEP_H_
