#include "cuda/sm90/kernels/single_wave/single_wave.h"
#include "cuda/sm90/kernels/single_wave/single_wave_launch.cuh"

namespace jax_convbatch::hopper {
namespace {

template <typename T>
cudaError_t RunDgrad(const ConvCall& call, Stage stage, cudaStream_t stream) {
  constexpr Contiguous kWeights = Contiguous::kReduction;
  const Activations in = OutputOf(call.g), out = InputOf(call.g);
  const SingleWaveParts parts = DgradParts(call.g);
  if (parts.size() == 1 && SumsInKSlices(in, out, parts[0])) {
    return SingleWaveSplitK(call, true, stage, stream);
  }
  return parts.size() == 1 ? RunSingleWave<T, kWeights, 1>(call, in, out, parts,
                                                           stage, stream)
                           : RunSingleWave<T, kWeights, kMaxSingleWaveParts>(
                                 call, in, out, parts, stage, stream);
}

}  // namespace

cudaError_t SingleWaveFprop(const ConvCall& call, Stage stage,
                            cudaStream_t stream) {
  if (SumsInKSlices(InputOf(call.g), OutputOf(call.g), FpropPart(call.g))) {
    return SingleWaveSplitK(call, false, stage, stream);
  }
  return call.type == Type::kBf16
             ? RunSingleWaveFprop<__nv_bfloat16>(call, stage, stream)
             : RunSingleWaveFprop<__half>(call, stage, stream);
}

cudaError_t SingleWaveDgrad(const ConvCall& call, Stage stage,
                            cudaStream_t stream) {
  return call.type == Type::kBf16 ? RunDgrad<__nv_bfloat16>(call, stage, stream)
                                  : RunDgrad<__half>(call, stage, stream);
}

}  // namespace jax_convbatch::hopper
