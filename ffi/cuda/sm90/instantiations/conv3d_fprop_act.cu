// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/instantiations/fprop_launch.cuh"
#include "cuda/sm90/kernels/conv/conv3d.h"

namespace jax_convbatch::hopper {

cudaError_t FpropAct3d(const ConvCall& call, const Epilogue& epilogue,
                       Stage stage, cudaStream_t stream) {
  return call.type == Type::kBf16
             ? RunFprop<__nv_bfloat16, true>(call, stage, stream, epilogue)
             : RunFprop<__half, true>(call, stage, stream, epilogue);
}

}  // namespace jax_convbatch::hopper
