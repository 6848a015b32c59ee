// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/kernels/conv/conv3d.h"
#include "cuda/sm90/kernels/single_wave/single_wave_launch.cuh"

namespace jax_convbatch::hopper {
namespace {

template <typename T>
cudaError_t Run(Op op, const ConvCall& call, Stage stage, cudaStream_t stream) {
  return op == Op::kFprop ? RunSingleWaveFprop<T, true>(call, stage, stream)
                          : RunSingleWave<T, Contiguous::kReduction, 1, true>(
                                call, OutputOf(call.g), InputOf(call.g),
                                DgradSubproblems(call.g), stage, stream);
}

}  // namespace

cudaError_t SingleWave3d(Op op, const ConvCall& call, Stage stage,
                         cudaStream_t stream) {
  return call.type == Type::kBf16 ? Run<__nv_bfloat16>(op, call, stage, stream)
                                  : Run<__half>(op, call, stage, stream);
}

}  // namespace jax_convbatch::hopper
