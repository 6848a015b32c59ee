// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/instantiations/fprop_launch.cuh"
#include "cuda/sm90/kernels/conv/conv3d.h"
#include "cuda/sm90/kernels/single_wave/single_wave_launch.cuh"

namespace jax_convbatch::hopper {
namespace {

template <typename T>
cudaError_t Run(const ConvCall& call, Stage stage, cudaStream_t stream) {
  PlainEpilogue<false> epilogue{};
  epilogue.bias = call.epilogue->bias;
  epilogue.relu = call.epilogue->activation == Activation::kRelu;
  return IsSingleWave(call.type, call.plan)
             ? RunSingleWaveFprop<T, true>(call, stage, stream, epilogue)
             : RunFprop<T, true>(call, stage, stream, epilogue);
}

}  // namespace

cudaError_t FpropPlain3d(const ConvCall& call, Stage stage,
                         cudaStream_t stream) {
  return call.type == Type::kBf16 ? Run<__nv_bfloat16>(call, stage, stream)
                                  : Run<__half>(call, stage, stream);
}

}  // namespace jax_convbatch::hopper
