// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/instantiations/fprop_launch.cuh"
#include "cuda/sm90/kernels/conv/conv3d.h"
#include "cuda/sm90/kernels/single_wave/single_wave_plan.h"

namespace jax_convbatch::hopper {

cudaError_t Fprop3d(const ConvCall& call, Stage stage, cudaStream_t stream) {
  if (call.epilogue != nullptr) return cudaErrorInvalidValue;
  if (IsSingleWave(call.type, call.plan)) {
    return SingleWave3d(Op::kFprop, call, stage, stream);
  }
  switch (call.type) {
    case Type::kBf16:
      return RunFprop<__nv_bfloat16, true>(call, stage, stream);
    case Type::kF16:
      return RunFprop<__half, true>(call, stage, stream);
    default:
      return Fprop3dTf32(call, stage, stream);
  }
}

}  // namespace jax_convbatch::hopper
