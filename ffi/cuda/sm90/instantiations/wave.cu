#include "cuda/sm90/kernels/single_wave/wave.h"
#include "cuda/sm90/kernels/single_wave/wave_launch.cuh"

namespace jax_convbatch::hopper {
namespace {

template <typename T>
cudaError_t RunDgrad(const ConvCall& call, Stage stage, cudaStream_t stream) {
  constexpr Contiguous kWeights = Contiguous::kReduction;
  const Activations in = OutputOf(call.g), out = InputOf(call.g);
  const WaveParts parts = DgradParts(call.g);
  if (parts.size() == 1 && SumsInChunks(in, out, parts[0])) {
    return WaveChunks(call, true, stage, stream);
  }
  return parts.size() == 1
             ? RunWave<T, kWeights, 1>(call, in, out, parts, stage, stream)
             : RunWave<T, kWeights, kMaxWaveParts>(call, in, out, parts, stage,
                                                   stream);
}

}  // namespace

cudaError_t WaveFprop(const ConvCall& call, Stage stage, cudaStream_t stream) {
  if (SumsInChunks(InputOf(call.g), OutputOf(call.g), FpropPart(call.g))) {
    return WaveChunks(call, false, stage, stream);
  }
  return call.type == Type::kBf16
             ? RunWaveFprop<__nv_bfloat16>(call, stage, stream)
             : RunWaveFprop<__half>(call, stage, stream);
}

cudaError_t WaveDgrad(const ConvCall& call, Stage stage, cudaStream_t stream) {
  return call.type == Type::kBf16 ? RunDgrad<__nv_bfloat16>(call, stage, stream)
                                  : RunDgrad<__half>(call, stage, stream);
}

}  // namespace jax_convbatch::hopper
