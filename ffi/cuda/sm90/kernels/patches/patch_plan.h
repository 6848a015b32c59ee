// SPDX-License-Identifier: Apache-2.0
// dgrad of patch embeddings in bf16 and f16. Host only.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_PATCHES_PATCH_PLAN_H_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_PATCHES_PATCH_PLAN_H_

#include <optional>

#include "cuda/sm90/problem/conv.h"

namespace jax_convbatch::hopper {

// For geometries that are IsPatches and FitsIn32Bits; nothing where the kernel
// cannot run: K is a multiple of 8, a filter row of an even number of elements
// fits a tile, and what is stored together is a multiple of 16 bytes.
std::optional<Plan> PlanPatchDgrad(const ConvGeometry& g, int multiprocessors);

// The kernel of a plan of the path kPatches; see conv.h.
cudaError_t PatchDgrad(const ConvCall& call, Stage stage, cudaStream_t stream);

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_PATCHES_PATCH_PLAN_H_
