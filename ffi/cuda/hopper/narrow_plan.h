// Which 1x1 filters of few channels the kernels of narrow_conv.cuh and
// narrow_wgrad.cuh run, and how. Host only.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_NARROW_PLAN_H_
#define JAX_CONVBATCH_CUDA_HOPPER_NARROW_PLAN_H_

#include <optional>

#include "cuda/hopper/conv.h"

namespace jax_convbatch::hopper {

// Groups of 64 bytes of an input pixel that there are kernels for, which are
// those of so many at least: the least such number, or 0 for none.
int NarrowGroups(int64_t channels, Type type);

// Of wgrad: rows of a product are channels of operand a, the wider one, and
// columns those of b; and for how many there is a kernel that takes both, 0 for
// none.
struct NarrowWgradShape {
  explicit NarrowWgradShape(const ConvGeometry& g);

  bool flipped;  // a is dy
  int a_channels, b_channels;
  int a, b;

  // What a block's warps add.
  int shared_bytes() const;
};

// For geometries that are IsPlain2d; nothing where the kernels cannot run or
// others are faster.
std::optional<Plan> PlanNarrowFprop(const ConvGeometry& g, Type type,
                                    int multiprocessors);
std::optional<Plan> PlanNarrowDgrad(const ConvGeometry& g, Type type,
                                    int multiprocessors);
std::optional<Plan> PlanNarrowWgrad(const ConvGeometry& g, Type type,
                                    int multiprocessors);

// The kernels of a plan of the path kSmall for 1x1 filters; see conv.h.
cudaError_t NarrowFprop(const ConvCall& call, Stage stage, cudaStream_t stream);
cudaError_t NarrowDgrad(const ConvCall& call, Stage stage, cudaStream_t stream);
cudaError_t NarrowWgrad(const ConvCall& call, Stage stage, cudaStream_t stream);

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_NARROW_PLAN_H_
