// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/instantiations/dgrad_launch.cuh"
#include "cuda/sm90/kernels/conv/conv3d.h"
#include "cuda/sm90/kernels/single_wave/single_wave_plan.h"

namespace jax_convbatch::hopper {

cudaError_t Dgrad3d(const ConvCall& call, Stage stage, cudaStream_t stream) {
  if (IsSingleWave(call.type, call.plan)) {
    return SingleWave3d(Op::kDgrad, call, stage, stream);
  }
  switch (call.type) {
    case Type::kBf16:
      return RunDgrad<__nv_bfloat16, true>(call, stage, stream);
    case Type::kF16:
      return RunDgrad<__half, true>(call, stage, stream);
    default:
      return Dgrad3dTf32(call, stage, stream);
  }
}

}  // namespace jax_convbatch::hopper
