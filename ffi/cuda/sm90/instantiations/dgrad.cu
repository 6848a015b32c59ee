// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/instantiations/dgrad_launch.cuh"
#include "cuda/sm90/kernels/conv/conv_tf32.h"
#include "cuda/sm90/kernels/conv/group_conv.h"
#include "cuda/sm90/kernels/halo/halo.h"
#include "cuda/sm90/kernels/single_wave/single_wave.h"

namespace jax_convbatch::hopper {

cudaError_t Dgrad(const ConvCall& call, Stage stage, cudaStream_t stream) {
  if (call.g.groups > 1) return GroupDgrad(call, stage, stream);
  if (call.plan.kernel == TileKernel::kHalo)
    return HaloDgrad(call, stage, stream);
  if (call.type == Type::kTf32) return DgradTf32(call, stage, stream);
  if (call.plan.kernel == TileKernel::kSingleWave) {
    return SingleWaveDgrad(call, stage, stream);
  }
  return call.type == Type::kBf16 ? RunDgrad<__nv_bfloat16>(call, stage, stream)
                                  : RunDgrad<__half>(call, stage, stream);
}

}  // namespace jax_convbatch::hopper
