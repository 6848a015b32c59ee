// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/kernels/conv/conv3d.h"
#include "cuda/sm90/kernels/single_wave/single_wave_tf32_launch.cuh"

namespace jax_convbatch::hopper {

cudaError_t SingleWave3dTf32(Op op, const ConvCall& call, Stage stage,
                             cudaStream_t stream) {
  const Activations x = InputOf(call.g), y = OutputOf(call.g);
  return op == Op::kFprop
             ? RunSingleWaveTf32<Contiguous::kRows, 1, true>(
                   call, x, y, {FpropSubproblem(call.g)}, stage, stream)
             : RunSingleWaveTf32<Contiguous::kReduction, 1, true>(
                   call, y, x, DgradSubproblems(call.g), stage, stream);
}

}  // namespace jax_convbatch::hopper
