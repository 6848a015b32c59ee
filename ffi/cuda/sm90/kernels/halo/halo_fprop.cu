// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/kernels/halo/halo_run.cuh"

namespace jax_convbatch::hopper {

cudaError_t HaloFprop(const ConvCall& call, Stage stage, cudaStream_t stream) {
  if (call.type == Type::kTf32) return HaloFpropTf32(call, stage, stream);
  return RunHalo<Contiguous::kRows>(call, call.g, stage, stream);
}

}  // namespace jax_convbatch::hopper
