#include "cuda/sm90/kernels/single_wave/wave.h"
#include "cuda/sm90/kernels/single_wave/wave_launch.cuh"
#include "cuda/sm90/problem/given_epilogue.h"

namespace jax_convbatch::hopper {
namespace {

template <typename T>
cudaError_t Run(const ConvCall& call, Stage stage, cudaStream_t stream) {
  return WithPlainEpilogue(call, [&](const auto& after) {
    return RunWaveFprop<T>(call, stage, stream, after);
  });
}

}  // namespace

cudaError_t WaveFpropPlain(const ConvCall& call, Stage stage,
                           cudaStream_t stream) {
  return call.type == Type::kBf16 ? Run<__nv_bfloat16>(call, stage, stream)
                                  : Run<__half>(call, stage, stream);
}

}  // namespace jax_convbatch::hopper
