// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/instantiations/conv_tf32_run.cuh"
#include "cuda/sm90/kernels/conv/conv3d.h"
#include "cuda/sm90/kernels/conv/transposed_plan.h"
#include "cuda/sm90/kernels/single_wave/single_wave_tf32_plan.h"

namespace jax_convbatch::hopper {

cudaError_t Fprop3dTf32(const ConvCall& call, Stage stage,
                        cudaStream_t stream) {
  if (IsTransposed(call.plan)) {
    return RunTransposedTf32<true>(call, stage, stream);
  }
  if (IsSingleWaveTf32(call.plan)) {
    return SingleWave3dTf32(Op::kFprop, call, stage, stream);
  }
  return RunFpropTf32<true>(call, stage, stream);
}

cudaError_t Dgrad3dTf32(const ConvCall& call, Stage stage,
                        cudaStream_t stream) {
  if (IsSingleWaveTf32(call.plan)) {
    return SingleWave3dTf32(Op::kDgrad, call, stage, stream);
  }
  return RunDgradTf32<true>(call, stage, stream);
}

}  // namespace jax_convbatch::hopper
