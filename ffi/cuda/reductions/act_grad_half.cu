// SPDX-License-Identifier: Apache-2.0
#include "cuda/reductions/act_grad.cuh"

namespace jax_convbatch {

template cudaError_t ActGrad<__half>(const ActGradCall&, cudaStream_t);
template cudaError_t ActGrad<__nv_bfloat16>(const ActGradCall&, cudaStream_t);

}  // namespace jax_convbatch
