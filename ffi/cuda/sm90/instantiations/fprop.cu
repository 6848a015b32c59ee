// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/instantiations/fprop_launch.cuh"
#include "cuda/sm90/kernels/conv/conv_tf32.h"
#include "cuda/sm90/kernels/conv/group_conv.h"
#include "cuda/sm90/kernels/halo/halo.h"
#include "cuda/sm90/kernels/single_wave/single_wave.h"

namespace jax_convbatch::hopper {

cudaError_t Fprop(const ConvCall& call, Stage stage, cudaStream_t stream) {
  if (call.epilogue != nullptr) return FpropAct(call, stage, stream);
  if (call.g.groups > 1) return GroupFprop(call, stage, stream);
  if (call.plan.kernel == TileKernel::kHalo)
    return HaloFprop(call, stage, stream);
  if (call.type == Type::kTf32) return FpropTf32(call, stage, stream);
  if (call.plan.kernel == TileKernel::kSingleWave) {
    return SingleWaveFprop(call, stage, stream);
  }
  return call.type == Type::kBf16 ? RunFprop<__nv_bfloat16>(call, stage, stream)
                                  : RunFprop<__half>(call, stage, stream);
}

}  // namespace jax_convbatch::hopper
