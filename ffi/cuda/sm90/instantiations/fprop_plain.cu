// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/instantiations/fprop_launch.cuh"
#include "cuda/sm90/kernels/single_wave/single_wave.h"
#include "cuda/sm90/problem/given_epilogue.h"

namespace jax_convbatch::hopper {
namespace {

template <typename T>
cudaError_t Run(const ConvCall& call, Stage stage, cudaStream_t stream) {
  return WithPlainEpilogue(call, [&](const auto& epilogue) {
    return RunFprop<T>(call, stage, stream, epilogue);
  });
}

}  // namespace

cudaError_t FpropPlain(const ConvCall& call, Stage stage, cudaStream_t stream) {
  if (call.plan.kernel == TileKernel::kSingleWave) {
    return SingleWaveFpropPlain(call, stage, stream);
  }
  return call.type == Type::kBf16 ? Run<__nv_bfloat16>(call, stage, stream)
                                  : Run<__half>(call, stage, stream);
}

}  // namespace jax_convbatch::hopper
