// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "cuda/sm90/kernels/conv/conv3d.h"
#include "cuda/sm90/kernels/conv/conv_tf32_launch.cuh"
#include "cuda/sm90/kernels/single_wave/single_wave_tf32_launch.cuh"

namespace jax_convbatch::hopper {

cudaError_t FpropAct3dTf32(const ConvCall& call, Stage stage,
                           cudaStream_t stream) {
  const std::array<SubproblemAxes, 1> subs = {FpropSubproblem(call.g)};
  return RunConvTf32<Contiguous::kRows, 1, kOneGroup, true>(
      call, InputOf(call.g), OutputOf(call.g), subs, kTf32Block, stage, stream,
      *call.epilogue);
}

cudaError_t SingleWavePlain3dTf32(const ConvCall& call,
                                  const PlainEpilogue<false>& epilogue,
                                  Stage stage, cudaStream_t stream) {
  return RunSingleWaveTf32<Contiguous::kRows, 1, true>(
      call, InputOf(call.g), OutputOf(call.g), {FpropSubproblem(call.g)}, stage,
      stream, epilogue);
}

}  // namespace jax_convbatch::hopper
