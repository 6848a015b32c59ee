#include "cuda/hopper/fprop_launch.cuh"
#include "cuda/hopper/given_epilogue.h"
#include "cuda/hopper/wave.h"
#include "cuda/hopper/wave_plan.h"

namespace jax_convbatch::hopper {
namespace {

template <typename T>
cudaError_t Run(const ConvCall& call, Stage stage, cudaStream_t stream) {
  return WithPlainEpilogue(call, [&](const auto& after) {
    return RunFprop<T>(call, stage, stream, after);
  });
}

}  // namespace

cudaError_t FpropPlain(const ConvCall& call, Stage stage, cudaStream_t stream) {
  if (IsWave(call.type, call.plan)) {
    return WaveFpropPlain(call, stage, stream);
  }
  return call.type == Type::kBf16 ? Run<__nv_bfloat16>(call, stage, stream)
                                  : Run<__half>(call, stage, stream);
}

}  // namespace jax_convbatch::hopper
