// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/kernels/single_wave/single_wave.h"
#include "cuda/sm90/kernels/single_wave/single_wave_launch.cuh"

namespace jax_convbatch::hopper {
namespace {

template <typename T>
cudaError_t RunDgrad(const ConvCall& call, Stage stage, cudaStream_t stream) {
  constexpr Contiguous kWeights = Contiguous::kReduction;
  const Activations in = OutputOf(call.g), out = InputOf(call.g);
  const SingleWaveSubproblems subs = DgradSubproblems(call.g);
  if (subs.size() == 1 && SumsInKSlices(in, out, subs[0])) {
    return SingleWaveSplitK(call, true, stage, stream);
  }
  return subs.size() == 1
             ? RunSingleWave<T, kWeights, 1>(call, in, out, subs, stage, stream)
             : RunSingleWave<T, kWeights, kMaxSingleWaveSubproblems>(
                   call, in, out, subs, stage, stream);
}

}  // namespace

cudaError_t SingleWaveFprop(const ConvCall& call, Stage stage,
                            cudaStream_t stream) {
  if (SumsInKSlices(InputOf(call.g), OutputOf(call.g),
                    FpropSubproblem(call.g))) {
    return SingleWaveSplitK(call, false, stage, stream);
  }
  return call.type == Type::kBf16
             ? RunSingleWaveFprop<__nv_bfloat16>(call, stage, stream)
             : RunSingleWaveFprop<__half>(call, stage, stream);
}

cudaError_t SingleWaveDgrad(const ConvCall& call, Stage stage,
                            cudaStream_t stream) {
  return call.type == Type::kBf16 ? RunDgrad<__nv_bfloat16>(call, stage, stream)
                                  : RunDgrad<__half>(call, stage, stream);
}

}  // namespace jax_convbatch::hopper
