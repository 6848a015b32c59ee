// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/instantiations/conv_tf32_run.cuh"
#include "cuda/sm90/kernels/conv/conv_tf32.h"
#include "cuda/sm90/kernels/conv/transposed_plan.h"
#include "cuda/sm90/kernels/single_wave/single_wave_tf32.h"

namespace jax_convbatch::hopper {

cudaError_t DgradTf32(const ConvCall& call, Stage stage, cudaStream_t stream) {
  if (call.plan.kernel == TileKernel::kSingleWave)
    return SingleWaveDgradTf32(call, stage, stream);
  return RunDgradTf32(call, stage, stream);
}

// Here, as the kernels are dgrad's.
cudaError_t FpropTransposedTf32(const ConvCall& call, Stage stage,
                                cudaStream_t stream) {
  return RunTransposedTf32(call, stage, stream);
}

}  // namespace jax_convbatch::hopper
