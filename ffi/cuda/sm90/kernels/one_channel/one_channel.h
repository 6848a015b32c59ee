// SPDX-License-Identifier: Apache-2.0
// f32 convolutions of one input channel. Host only.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_ONE_CHANNEL_ONE_CHANNEL_H_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_ONE_CHANNEL_ONE_CHANNEL_H_

#include <optional>

#include "cuda/sm90/problem/conv.h"
#include "cuda/sm90/problem/op.h"

namespace jax_convbatch::hopper {

// Nothing where the kernels cannot run: they take 3x3 and 5x5 filters and a
// power of two of output channels from 4 to 128; dgrad without stride.
std::optional<Plan> PlanOneChannel(Op op, const ConvGeometry& g,
                                   int multiprocessors);

// The kernels of a plan of the path kOneChannel; see conv.h.
cudaError_t RunOneChannel(Op op, const ConvCall& call, Stage stage,
                          cudaStream_t stream);

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_ONE_CHANNEL_ONE_CHANNEL_H_
