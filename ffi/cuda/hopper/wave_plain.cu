#include "cuda/hopper/given_epilogue.h"
#include "cuda/hopper/wave.h"
#include "cuda/hopper/wave_launch.cuh"

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
