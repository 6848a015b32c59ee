// SPDX-License-Identifier: Apache-2.0
// The two halves of a call.
#ifndef JAX_CONVBATCH_CUDA_COMMON_STAGE_H_
#define JAX_CONVBATCH_CUDA_COMMON_STAGE_H_

namespace jax_convbatch {

// kPrepare does all but the launch, so that kLaunch may be captured.
enum class Stage { kPrepare, kLaunch };

}  // namespace jax_convbatch

#endif  // JAX_CONVBATCH_CUDA_COMMON_STAGE_H_
