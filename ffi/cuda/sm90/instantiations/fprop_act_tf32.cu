// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "cuda/sm90/kernels/conv/conv_tf32.h"
#include "cuda/sm90/kernels/conv/conv_tf32_launch.cuh"
#include "cuda/sm90/kernels/single_wave/single_wave_tf32.h"

namespace jax_convbatch::hopper {

cudaError_t FpropActTf32(const ConvCall& call, Stage stage,
                         cudaStream_t stream) {
  if (call.plan.kernel == TileKernel::kSingleWave)
    return SingleWaveFpropPlainTf32(call, stage, stream);
  const std::array<SubproblemAxes, 1> subs = {FpropSubproblem(call.g)};
  return RunConvTf32<Contiguous::kRows, 1>(call, InputOf(call.g),
                                           OutputOf(call.g), subs, kTf32Block,
                                           stage, stream, *call.epilogue);
}

}  // namespace jax_convbatch::hopper
