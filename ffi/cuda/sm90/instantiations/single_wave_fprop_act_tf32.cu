// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/kernels/single_wave/single_wave_tf32.h"
#include "cuda/sm90/kernels/single_wave/single_wave_tf32_launch.cuh"

namespace jax_convbatch::hopper {

cudaError_t SingleWaveFpropPlainTf32(const ConvCall& call, Stage stage,
                                     cudaStream_t stream) {
  PlainEpilogue<false> plain{};
  plain.bias = call.epilogue->bias;
  plain.relu = call.epilogue->activation == Activation::kRelu;
  return RunSingleWaveTf32<Contiguous::kRows, 1>(
      call, InputOf(call.g), OutputOf(call.g), {FpropSubproblem(call.g)}, stage,
      stream, plain);
}

}  // namespace jax_convbatch::hopper
