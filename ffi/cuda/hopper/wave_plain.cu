#include "cuda/hopper/wave.h"
#include "cuda/hopper/wave_launch.cuh"

namespace jax_convbatch::hopper {
namespace {

template <typename T>
cudaError_t Run(const ConvCall& call, Stage stage, cudaStream_t stream) {
  const Epilogue& given = *call.epilogue;
  auto run = [&](auto after) {
    after.bias = given.bias;
    after.signs = given.signs;
    after.relu = given.activation == Activation::kRelu;
    return RunWaveFprop<T>(call, stage, stream, after);
  };
  return given.signs != nullptr ? run(PlainEpilogue<true>())
                                : run(PlainEpilogue<false>());
}

}  // namespace

cudaError_t WaveFpropPlain(const ConvCall& call, Stage stage,
                           cudaStream_t stream) {
  return call.type == Type::kBf16 ? Run<__nv_bfloat16>(call, stage, stream)
                                  : Run<__half>(call, stage, stream);
}

}  // namespace jax_convbatch::hopper
