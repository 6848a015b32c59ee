// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/kernels/conv/conv3d.h"
#include "cuda/sm90/kernels/conv/conv_tf32.h"
#include "cuda/sm90/kernels/single_wave/single_wave_tf32.h"
#include "cuda/sm90/kernels/single_wave/single_wave_tf32_launch.cuh"

namespace jax_convbatch::hopper {

cudaError_t SingleWaveFpropActTf32(const ConvCall& given, Stage stage,
                                   cudaStream_t stream) {
  const Epilogue& epilogue = *given.epilogue;
  if (!epilogue.is_plain() || epilogue.bitmask != nullptr) {
    ConvCall call = given;
    call.plan = WithTf32Epilogue(given.g, given.plan);
    return FpropActTf32(call, stage, stream);
  }
  PlainEpilogue<false> plain{};
  plain.bias = epilogue.bias;
  plain.relu = epilogue.activation == Activation::kRelu;
  if (Is3d(given.g)) {
    return SingleWavePlain3dTf32(given, plain, stage, stream);
  }
  return RunSingleWaveTf32<Contiguous::kRows, 1>(
      given, InputOf(given.g), OutputOf(given.g), {FpropSubproblem(given.g)},
      stage, stream, plain);
}

}  // namespace jax_convbatch::hopper
