// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/kernels/conv/conv3d.h"
#include "cuda/sm90/kernels/wgrad/wgrad_tf32_launch.cuh"
#include "cuda/sm90/kernels/wgrad/wgrad_tiles_launch.cuh"

namespace jax_convbatch::hopper {

cudaError_t Wgrad3d(const ConvCall& call, Stage stage, cudaStream_t stream) {
  switch (call.type) {
    case Type::kBf16:
      return RunTiles<__nv_bfloat16, true>(call, stage, stream);
    case Type::kF16:
      return RunTiles<__half, true>(call, stage, stream);
    default:
      return RunTf32Tiles<kOneGroup, true>(call, stage, stream);
  }
}

}  // namespace jax_convbatch::hopper
