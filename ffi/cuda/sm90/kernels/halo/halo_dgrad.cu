// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/kernels/halo/halo_run.cuh"

namespace jax_convbatch::hopper {

cudaError_t HaloDgrad(const ConvCall& call, Stage stage, cudaStream_t stream) {
  if (call.type == Type::kTf32) return HaloDgradTf32(call, stage, stream);
  return RunHalo<Contiguous::kReduction>(call, DgradAsFprop(call.g), stage,
                                         stream);
}

}  // namespace jax_convbatch::hopper
