// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/kernels/single_wave/single_wave_tf32.h"
#include "cuda/sm90/kernels/single_wave/single_wave_tf32_launch.cuh"

namespace jax_convbatch::hopper {

cudaError_t SingleWaveDgradTf32(const ConvCall& call, Stage stage,
                                cudaStream_t stream) {
  constexpr Contiguous kWeights = Contiguous::kReduction;
  const Activations in = OutputOf(call.g), out = InputOf(call.g);
  const std::vector<SubproblemAxes> subs = DgradSubproblems(call.g);
  return subs.size() == 1
             ? RunSingleWaveTf32<kWeights, 1>(call, in, out, subs, stage,
                                              stream)
             : RunSingleWaveTf32<kWeights, kMaxSingleWaveSubproblems>(
                   call, in, out, subs, stage, stream);
}

}  // namespace jax_convbatch::hopper
